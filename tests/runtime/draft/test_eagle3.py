"""In: settings. Out: the draft's names, shapes, initial weights, and its cache against one forward without it."""

from __future__ import annotations

import attrs
import pytest
import torch

from specforge.runtime.draft.eagle3 import DraftCache, init_draft
from specforge.settings import DraftSettings

pytestmark = pytest.mark.cpu

SETTINGS = DraftSettings(
    architecture="LlamaForCausalLMEagle3",
    hidden_size=16,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    draft_vocab_size=20,
    target_hidden_size=12,
    aux_layers=(1, 2, 3),
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope={"rope_type": "default", "rope_theta": 10000.0},
    max_position_embeddings=64,
    fc_norm=False,
    norm_output=False,
    dtype="float32",
    initializer_range=0.2,
    parameters=(),
)
SHAPES = {
    "embed_tokens.weight": (50, 16),
    "fc.weight": (16, 36),
    "midlayer.self_attn.q_proj.weight": (32, 32),
    "midlayer.self_attn.k_proj.weight": (16, 32),
    "midlayer.self_attn.v_proj.weight": (16, 32),
    "midlayer.self_attn.o_proj.weight": (16, 32),
    "midlayer.mlp.gate_proj.weight": (24, 16),
    "midlayer.mlp.up_proj.weight": (24, 16),
    "midlayer.mlp.down_proj.weight": (16, 24),
    "midlayer.hidden_norm.weight": (16,),
    "midlayer.input_layernorm.weight": (16,),
    "midlayer.post_attention_layernorm.weight": (16,),
    "norm.weight": (16,),
    "lm_head.weight": (20, 16),
    "d2t": (20,),
    "t2d": (50,),
}


@pytest.mark.parametrize("fc_norm", [False, True])
def test_state_dict_has_the_names_and_shapes_of_the_format(fc_norm):
    draft = init_draft(attrs.evolve(SETTINGS, fc_norm=fc_norm), 0)
    expected = SHAPES | ({f"fc_norm.{i}.weight": (12,) for i in range(3)} if fc_norm else {})
    assert {n: tuple(v.shape) for n, v in draft.state_dict().items()} == expected
    assert draft.d2t.dtype == torch.int64
    assert draft.t2d.dtype == torch.bool
    assert [n for n, p in draft.named_parameters() if not p.requires_grad] == ["embed_tokens.weight"]


def test_init_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = init_draft(SETTINGS, 7)
    state = torch.get_rng_state()
    second = init_draft(SETTINGS, 7)
    assert torch.equal(torch.get_rng_state(), state)
    other = init_draft(SETTINGS, 8)
    for name, parameter in first.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, second.get_parameter(name))
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert not torch.equal(parameter, other.get_parameter(name))
            assert parameter.std().item() == pytest.approx(0.2, rel=0.2)


def test_draft_ids_go_to_target_ids_by_offset():
    draft = init_draft(SETTINGS, 0)
    kept = torch.arange(20) * 2 + 1
    draft.d2t.copy_(kept - torch.arange(20))
    ids = torch.tensor([[0, 19], [3, 4]])
    assert torch.equal(draft.to_target_ids(ids), kept[ids])
    assert torch.equal(draft.kept_ids_d, kept)


def test_until_a_map_is_set_the_first_ids_are_kept():
    draft = init_draft(SETTINGS, 0)
    assert torch.equal(draft.t2d.nonzero()[:, 0], draft.kept_ids_d)


@pytest.mark.parametrize("norm_output", [False, True])
def test_logits_are_normed_exactly_once(norm_output):
    draft = init_draft(attrs.evolve(SETTINGS, norm_output=norm_output), 0)
    out = torch.randn(3, 16)
    fed = draft.feedback(out)
    assert torch.equal(fed, draft.norm(out)) == norm_output
    torch.testing.assert_close(draft.logits(fed), draft.lm_head(draft.norm(out)))


def test_a_scaled_embedding_says_the_same():
    """It is normed at once: so a target's embedding scale, which engines do not share, is not applied (ADR 6)."""
    settings = attrs.evolve(SETTINGS, rms_norm_eps=0.0)
    draft = init_draft(settings, 3)
    hidden_BSH, tokens_BS = torch.randn(1, 4, 16), torch.tensor([[3, 1, 4, 1]])
    visible_BST = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    found = []
    for scale in (1.0, 4.0):
        with torch.no_grad():
            draft.embed_tokens.weight.mul_(scale)
            found.append(draft.extend(hidden_BSH, tokens_BS, torch.arange(4)[None], DraftCache(), visible_BST))
    assert torch.equal(*found)


def test_fc_norm_norms_each_third_by_its_own_weight():
    draft = init_draft(attrs.evolve(SETTINGS, fc_norm=True), 0)
    with torch.no_grad():
        for i, norm in enumerate(draft.fc_norm):
            norm.weight.fill_(i + 1.0)
    aux = torch.randn(5, 36) * torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(12)
    thirds = [x / x.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt() * (i + 1) for i, x in enumerate(aux.chunk(3, -1))]
    torch.testing.assert_close(draft.fuse(aux), torch.cat(thirds, -1) @ draft.fc.weight.T)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_extending_in_pieces_equals_extending_at_once(num_kv_heads):
    draft = init_draft(attrs.evolve(SETTINGS, num_kv_heads=num_kv_heads), 0).double()
    torch.manual_seed(0)
    hidden, tokens = torch.randn(2, 11, 16, dtype=torch.float64), torch.randint(0, 50, (2, 11))
    positions = torch.arange(60, 71).expand(2, -1)  # past max_position_embeddings: there is no table to run out of
    causal = torch.ones(2, 11, 11, dtype=torch.bool).tril()
    with torch.no_grad():
        whole = draft.extend(hidden, tokens, positions, DraftCache(), causal)
        cache, parts = DraftCache(), []
        for start, end in ((0, 1), (1, 6), (6, 11)):
            at = slice(start, end)
            visible = causal[:, at, :end]
            parts.append(draft.extend(hidden[:, at], tokens[:, at], positions[:, at], cache, visible))
            assert len(cache) == end
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)


def test_what_a_query_may_not_see_does_not_matter():
    draft = init_draft(SETTINGS, 0)
    torch.manual_seed(0)
    hidden, tokens, positions = torch.randn(1, 4, 16), torch.randint(0, 50, (1, 4)), torch.arange(4)[None]
    visible = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    visible[:, 2:, 1] = False
    with torch.no_grad():
        first = draft.extend(hidden, tokens, positions, DraftCache(), visible)
        hidden[:, 1] = 100.0
        second = draft.extend(hidden, tokens, positions, DraftCache(), visible)
    assert torch.equal(first[:, [0, 2, 3]], second[:, [0, 2, 3]])
    assert not torch.equal(first[:, 1], second[:, 1])


def test_a_cast_draft_keeps_its_rotary_tables():
    draft = init_draft(SETTINGS, 0)
    before = draft.rotary.inv_freq.clone()
    draft.to(torch.bfloat16)
    assert draft.rotary.inv_freq.dtype == torch.float32
    assert torch.equal(draft.rotary.inv_freq, before)
    fused = draft.fuse(torch.randn(1, 2, 36))
    out = draft.extend(
        fused, torch.tensor([[1, 2]]), torch.tensor([[0, 1]]), DraftCache(), torch.ones(1, 2, 2, dtype=torch.bool)
    )
    assert out.dtype == torch.bfloat16
