"""In: recipes whose draft names a config.json. Out: its sizes in the plan, with where they came from."""

import json

import pytest

from specforge.compiler import compile, load

pytestmark = pytest.mark.null
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "draft_vocab_size": 128,
    "rms_norm_eps": 0.5,
    "hidden_act": "gelu",
    "rope_theta": 12345.0,
    "rope_scaling": {"type": "linear", "factor": 2.0},
}


def compiled(write, draft, **changes):
    """The plan of a recipe with that draft; draft.json is CONFIG with the changes."""
    path = write(train=f"Capture(rows, target), Eagle3(), draft={draft}")
    (path.parent / "draft.json").write_text(json.dumps(CONFIG | changes))
    return compile(load(path))


def test_what_the_recipe_leaves_out_is_the_files(write):
    plan = compiled(write, 'Draft(config="draft.json", num_heads=12, vocab_size=64)')
    draft = plan.op("train").settings.draft
    assert (draft.num_heads, draft.num_kv_heads, draft.head_dim) == (12, 4, 24)
    assert (draft.intermediate_size, draft.draft_vocab_size, draft.hidden_size) == (96, 64, 64)
    assert (draft.rms_norm_eps, draft.hidden_act) == (0.5, "gelu")
    assert draft.rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 12345.0}
    shapes = {p.name: p.shape for p in draft.parameters}
    assert shapes["midlayer.self_attn.k_proj.weight"] == (4 * 24, 128)
    sources = {o.path: (o.value, o.source) for o in plan.origins}
    assert sources["train.draft.head_dim"] == ("24", "derived: the draft's config")
    assert sources["train.draft.num_heads"][1].startswith("line ")
    assert "draft.json" in {file.path for file in plan.files}


def test_without_a_draft_vocabulary_the_file_means_the_targets(write):
    plan = compiled(write, 'Draft(config="draft.json")', draft_vocab_size=None)
    assert plan.op("train").settings.draft.draft_vocab_size == 256


def test_a_file_that_agrees_on_what_others_decide_is_taken(write):
    agreeing = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, "fc_norm": False}
    assert compiled(write, 'Draft(config="draft.json")', **agreeing).op("train").settings.draft.aux_layers == (1, 3, 4)


def test_the_rope_types_are_those_that_the_runtime_computes():
    layers = pytest.importorskip("specforge.runtime.draft.layers", reason="needs torch")
    from specforge.compiler.checks.draft import ROPE_TYPES

    assert {*layers.UNSCALED, *layers.ROPE_INIT_FUNCTIONS} >= ROPE_TYPES
