"""In: the recipes of 8B targets. Out: the published parameter counts, the configs' facts, and a draft that fits."""

from pathlib import Path

import pytest

from specforge.compiler import compile, load

pytestmark = pytest.mark.null
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(("name", "count"), [("llama31_8b_eagle3", 8_030_261_248), ("qwen3_8b_eagle3", 8_190_735_360)])
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
