"""In: random rows. Out: norms, rotation and their gradients equal plain formulas; rotary frequencies stay float32."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from specforge_kernels.split_rotate import rotate
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specforge.runtime.draft.layers import MLP, RMSNorm, Rotary
from specforge.settings import DraftSettings

pytestmark = pytest.mark.cpu

SETTINGS = DraftSettings(
    architecture="LlamaForCausalLMEagle3",
    hidden_size=32,
    intermediate_size=48,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    vocab_size=64,
    draft_vocab_size=32,
    target_hidden_size=32,
    aux_layers=(1, 2, 3),
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope={"rope_type": "default", "rope_theta": 10000.0},
    max_position_embeddings=128,
    fc_norm=False,
    norm_output=False,
    dtype="float32",
    initializer_range=0.02,
    parameters=(),
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def rotary(**rope):
    return Rotary(attrs.evolve(SETTINGS, rope=rope))


def test_norm_and_its_gradients_equal_the_formula():
    torch.manual_seed(0)
    norm = RMSNorm(7, 1e-5).double()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    plain = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * norm.weight
    grad = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, [x, norm.weight], grad)
    found = torch.autograd.grad(norm(x), [x, norm.weight], grad)
    torch.testing.assert_close(norm(x), plain)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_norm_rounds_to_bfloat16_before_the_weight():
    torch.manual_seed(1)
    norm = RMSNorm(64, 1e-5).bfloat16()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    x = torch.randn(9, 64).bfloat16()
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).bfloat16() * norm.weight
    assert (norm(x) != expected).float().mean() < 0.01  # a last bit of the float32 scale may round the other way
    torch.testing.assert_close(norm(x), expected, rtol=0.01, atol=0)


def test_rotation_is_a_product_of_complex_numbers_and_its_gradient_turns_back():
    torch.manual_seed(2)
    table = rotary(rope_type="default", rope_theta=10000.0)
    positions = torch.tensor([0, 3, 100_000])
    cos, sin = table(positions)
    x = torch.randn(3, 2, 16, dtype=torch.float64, requires_grad=True)
    angle = positions[:, None].float() * (1 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16))
    spin = torch.polar(torch.ones_like(angle), angle).to(torch.complex128)[:, None]
    turned = torch.complex(x[..., :8], x[..., 8:]) * spin
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(rotate(x, cos, sin), expected, rtol=1e-6, atol=1e-6)
    grad = torch.randn_like(expected)
    (found,) = torch.autograd.grad(rotate(x, cos, sin), x, grad)
    torch.testing.assert_close(found, rotate(grad, cos, -sin))


@pytest.mark.parametrize("move", [lambda m: m.to(torch.bfloat16), lambda m: m.double(), lambda m: m.half()])
def test_tables_are_float32_after_any_cast(move):
    table = rotary(rope_type="default", rope_theta=10000.0)
    before = table.inv_freq.clone()
    moved = move(torch.nn.Sequential(table))[0]
    assert moved.inv_freq.dtype == torch.float32
    assert torch.equal(moved.inv_freq, before)
    cos, _ = moved(torch.arange(4096))
    assert cos.dtype == torch.float32
    assert len(cos[:, 0, 0].unique()) > 4000  # bfloat16 positions would leave some 700 distinct ones
    assert not moved.state_dict()


@pytest.mark.parametrize("rope", [LLAMA3, YARN, {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}])
def test_scaled_frequencies_are_those_of_transformers(rope):
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=128, rope_parameters=dict(rope)
    )
    expected, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    given = dict(rope)
    table = rotary(**given)
    torch.testing.assert_close(table.inv_freq, expected)
    assert table.scaling == pytest.approx(scaling)
    assert given == rope
    cos, _ = table(torch.zeros(1, dtype=torch.int64))
    assert cos.max().item() == pytest.approx(scaling)


def test_yarn_scales_cos_and_sin():
    assert rotary(**YARN).scaling == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "spiral", "rope_theta": 1.0}, "rope_type='spiral' is unknown"),
        ({"rope_type": "default", "rope_theta": 1.0, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_a_rope_it_cannot_do_is_refused(rope, message):
    with pytest.raises(ValueError, match=message):
        rotary(**rope)


def test_mlp_is_gated_reads_normed_rows_and_adds_to_its_input():
    torch.manual_seed(3)
    mlp, norm = MLP(4, 6, "silu"), RMSNorm(4, 1e-5)
    for parameter in (*mlp.parameters(), norm.weight):
        torch.nn.init.normal_(parameter[None])
    x = torch.randn(2, 5, 4)
    gate, up = norm(x) @ mlp.gate_proj.weight.T, norm(x) @ mlp.up_proj.weight.T
    torch.testing.assert_close(mlp(x, norm), x + (gate * torch.sigmoid(gate) * up) @ mlp.down_proj.weight.T)


@pytest.mark.parametrize("plus", [False, True])
def test_linear_maps_behind_a_norm_have_its_gradients_and_keep_no_normed_rows(plus):
    torch.manual_seed(4)
    norm = RMSNorm(7, 1e-5).double()
    torch.nn.init.uniform_(norm.weight, 0.5, 2)
    x, one, other, added = (
        torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((5, 7), (3, 7), (4, 7), (5, 3))
    )
    leaves = [x, norm.weight, one, other, *([added] if plus else [])]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = norm.then(x, one, other, added=added if plus else None)
    wanted = (norm(x) @ one.t() + (added if plus else 0), norm(x) @ other.t())
    assert sorted(t.numel() for t in kept) == [5, 7, 21, 28, 35], "x, weights, and one scale per row"
    grads = [torch.randn_like(y) for y in wanted]
    pairs = zip(torch.autograd.grad(found, leaves, grads), torch.autograd.grad(wanted, leaves, grads), strict=True)
    for a, b in (*zip(found, wanted, strict=True), *pairs):
        torch.testing.assert_close(a, b)
