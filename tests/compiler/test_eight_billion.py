"""In: the recipes of large targets. Out: the published parameter counts, the configs' facts, and a draft that fits."""

from pathlib import Path

import pytest

from specforge.compiler import compile, load
from specforge.compiler.show import text

pytestmark = pytest.mark.null
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama31_8b_eagle3", 8_030_261_248),
        ("qwen3_8b_eagle3", 8_190_735_360),
        ("qwen3_30b_a3b_eagle3", 30_532_122_624),
    ],
)
def test_the_target_has_its_published_parameters_and_fits(name, count):
    plan = compile(load(RECIPES / f"{name}.py"))
    assert plan.target.parameter_count == count
    assert (plan.device.name, plan.roles[0].target_dtype) == ("H200", "bfloat16")
    assert sum(p.bytes for p in plan.memory) < plan.device.memory_bytes
    assert not plan.warnings


def test_the_drafts_rotary_embedding_is_the_targets():
    llama = compile(load(RECIPES / "llama31_8b_eagle3.py")).op("train").settings.draft
    qwen = compile(load(RECIPES / "qwen3_8b_eagle3.py")).op("train").settings.draft
    assert (llama.rope["rope_type"], llama.rope["factor"], llama.rope["rope_theta"]) == ("llama3", 8.0, 500000.0)
    assert (qwen.rope["rope_type"], qwen.rope["rope_theta"]) == ("default", 1000000.0)
    assert (llama.draft_vocab_size, llama.vocab_size, qwen.vocab_size) == (32000, 128256, 151936)


def test_a_target_too_large_for_the_device_is_said_so():
    plan = compile(load(RECIPES / "deepseek_v3_eagle3.py"))
    # published with 14,848 more: the biases of the routers, which transformers keeps as buffers
    assert plan.target.parameter_count == 671_026_419_200 - 58 * 256
    assert "DOES NOT FIT" in text(plan)
    assert [w for w in plan.warnings if "split the target over GPUs" in w]


def test_it_fits_where_a_server_splits_it():
    plan = compile(load(RECIPES / "deepseek_v3_eagle3_disaggregated.py"))
    assert "DOES NOT FIT" not in text(plan)


def test_the_draft_of_latent_attention_has_heads_of_its_own():
    plan = compile(load(RECIPES / "deepseek_v3_eagle3.py"))
    draft, geometry = plan.op("train").settings.draft, plan.target.geometry
    assert (draft.num_heads * draft.head_dim, draft.head_dim) == (geometry.hidden_size, geometry.latent.value_dim)
    assert (draft.num_heads, draft.num_kv_heads) == (56, 8)
    sources = {o.path: o.source for o in plan.origins if "MLA" in o.source}
    assert set(sources) == {f"train.draft.{name}" for name in ("num_heads", "num_kv_heads", "head_dim")}
    again = compile(load(RECIPES / "deepseek_v3_eagle3.py", ("train.draft.num_heads=64",)))
    assert again.op("train").settings.draft.num_kv_heads == 8
