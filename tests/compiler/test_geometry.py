"""In: config.json files as models ship them. Out: their Geometry, found without a network, or the problem."""

import json
from pathlib import Path

import pytest

from specforge.compiler import CompileError, compile, load
from specforge.compiler.geometry import geometry_of
from specforge.compiler.parameter_count import parameter_count
from specforge.plan import dump
from specforge.settings import Experts
from specforge.shipped import locate, recipes_folder

pytestmark = pytest.mark.null
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
RECIPE = (
    "from specforge.dsl import *\n"
    "rows = Prompts('rows.jsonl', max_length=8)\n"
    "recipe = Recipe('x', Train(Capture(rows, Target('{name}')), Eagle3()))\n"
)


@pytest.fixture
def recipe(tmp_path):
    """recipe(name) writes a recipe for the target of that name, and gives its path."""
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [1, 2], "loss_mask": [1, 1]}\n')

    def write(name: str) -> Path:
        (tmp_path / "recipe.py").write_text(RECIPE.format(name=name))
        return tmp_path / "recipe.py"

    return write


def put(path: Path, config: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def test_what_a_config_leaves_out_follows_from_the_rest():
    geometry = geometry_of(SIZES)
    assert (geometry.num_kv_heads, geometry.head_dim) == (4, 16)
    assert (geometry.tied_embeddings, geometry.eos_token_ids, geometry.hidden_act) == (False, (), "silu")
    assert (geometry.weights_dtype, geometry.model_type) == ("float32", "unknown")


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"head_dim": 32}, "head_dim", 32),
        ({"num_key_value_heads": 2}, "num_kv_heads", 2),
        ({"tie_word_embeddings": True}, "tied_embeddings", True),
        ({"eos_token_id": [2, 7]}, "eos_token_ids", (2, 7)),
        ({"eos_token_id": 0}, "eos_token_ids", (0,)),
        ({"torch_dtype": "bfloat16"}, "weights_dtype", "bfloat16"),
        ({"dtype": "torch.float16"}, "weights_dtype", "float16"),
        ({"hidden_activation": "gelu_pytorch_tanh"}, "hidden_act", "gelu_pytorch_tanh"),
        ({"rope_theta": 500000.0}, "rope", {"rope_theta": 500000.0, "rope_type": "default"}),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope",
            {"factor": 2.0, "rope_theta": 1e6, "rope_type": "linear"},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "rope",
            {"factor": 8.0, "low_freq_factor": 1.0, "rope_theta": 5e5, "rope_type": "llama3"},
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
            "rope",
            {"factor": 4.0, "rope_theta": 1e4, "rope_type": "yarn"},
        ),
        ({"num_experts": 8, "num_experts_per_tok": 2}, "experts", Experts(8, 2, 0, 128, 8)),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, "experts", Experts(8, 2, 0, 128, 8)),
        ({"num_experts": 0, "num_experts_per_tok": 2}, "experts", None),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": list(range(8))}, "experts", None),
        ({"kv_lora_rank": None}, "latent", None),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
            "rope",
            {"rope_theta": 1e6, "rope_type": "default"},
        ),
        ({}, "rope", {"rope_theta": 10000.0, "rope_type": "default"}),
    ],
)
def test_a_config_is_read(config, field, value):
    assert getattr(geometry_of(SIZES | config), field) == value


def test_both_ways_to_write_a_rotary_embedding_are_one_geometry():
    old = geometry_of(SIZES | {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}})
    new = geometry_of(SIZES | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}})
    assert old == new


def test_the_text_part_of_a_nested_config_holds(recipe, tmp_path):
    nested = {"model_type": "vision", "hidden_size": 1, "text_config": SIZES | {"model_type": "text"}}
    put(tmp_path / "model" / "config.json", nested)
    geometry = compile(load(recipe("model"))).target.geometry
    assert (geometry.hidden_size, geometry.model_type) == (64, "text")


def test_a_local_folder_comes_first_and_is_where_the_weights_are(recipe, tmp_path):
    put(tmp_path / "model" / "config.json", SIZES)
    target = compile(load(recipe("model"))).target
    assert (target.folder, target.config, target.random_seed) == ("model", "model/config.json", None)


def test_a_shipped_config_is_found_by_name(recipe):
    target = compile(load(recipe("HuggingFaceTB/SmolLM2-135M-Instruct"))).target
    assert target.folder is None
    assert target.config == "shipped:HuggingFaceTB--SmolLM2-135M-Instruct.json"
    assert locate(target.config, Path("/nowhere")).is_file()
    assert (target.geometry.num_layers, target.geometry.tied_embeddings) == (30, True)
    assert target.parameter_count == 134_515_008


def test_a_local_folder_keeps_its_weights_with_a_config_of_its_own(recipe, tmp_path):
    put(tmp_path / "model" / "config.json", SIZES)
    put(tmp_path / "other.json", SIZES | {"num_hidden_layers": 9})
    path = recipe("model")
    target = compile(load(path, ('train.features.target.config="other.json"',))).target
    assert (target.folder, target.config, target.geometry.num_layers) == ("model", "other.json", 9)
    random = ('train.features.target.config="other.json"', "train.features.target.random_weights=True")
    assert compile(load(path, random)).target.folder is None


def test_a_config_in_the_hub_cache_is_found_by_name(recipe, tmp_path):
    """Its plan is the same wherever the cache lies."""
    path, plans = recipe("lab/Model-1B"), []
    for home in ("one", "two"):
        cache = tmp_path / home / "hub"
        put(cache / "models--lab--Model-1B" / "snapshots" / f"{home}abc" / "config.json", SIZES)
        plans.append(compile(load(path), (tmp_path / "empty", cache)))
    plan = plans[0]
    assert plan.target.geometry.hidden_size == 64
    assert plan.target.config == "hub:lab/Model-1B/config.json"
    assert [f.path for f in plan.files if f.use == "target config"] == ["hub:lab/Model-1B/config.json"]
    assert dump(plans[1]) == dump(plan)
    assert locate(plan.target.config, Path("/nowhere"), (tmp_path / "empty", cache)).parent.name == "twoabc"
    assert not locate(plan.target.config, tmp_path).exists()
    with pytest.raises(CompileError, match=r"hf download lab/Model-1B config\.json"):
        compile(load(path))


@pytest.mark.parametrize("path", sorted((recipes_folder() / "targets").glob("*.json")), ids=lambda p: p.stem)
def test_every_shipped_config_is_a_plain_decoder(path):
    geometry = geometry_of(json.loads(path.read_text()))
    assert geometry.num_heads % geometry.num_kv_heads == 0
    assert geometry.head_dim % 2 == 0
    assert parameter_count(geometry) > 0


@pytest.mark.parametrize("head", [{"final_logit_softcapping": 30.0}, {"logit_scale": 0.0625}, {"logits_scaling": 8.0}])
def test_logits_that_are_not_known_of_the_model_type_are_refused(recipe, tmp_path, head):
    put(tmp_path / "model" / "config.json", SIZES | head)
    with pytest.raises(CompileError, match=rf"not the head's alone \({next(iter(head))} is .*target-head"):
        compile(load(recipe("model")))


@pytest.mark.parametrize("head", [{"final_logit_softcapping": None}, {"logit_scale": 1.0}, {"logits_scaling": 1}])
def test_a_plain_head_that_says_so_is_taken(recipe, tmp_path, head):
    put(tmp_path / "model" / "config.json", SIZES | head)
    assert compile(load(recipe("model"))).target.geometry == geometry_of(SIZES)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '"text"',
        "5",
        '{"text_config": 5}',
        '{"hidden_size": 64}',
        json.dumps(SIZES | {"num_hidden_layers": "8"}),
        json.dumps(SIZES | {"num_attention_heads": 0}),
        json.dumps(SIZES | {"rope_scaling": "linear"}),
        json.dumps(SIZES | {"rms_norm_eps": "x"}),
        json.dumps(SIZES | {"num_experts": 8}),
        json.dumps(SIZES | {"kv_lora_rank": 8}),
    ],
)
def test_a_config_that_is_none_is_a_problem_and_no_traceback(recipe, tmp_path, content):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(content)
    with pytest.raises(CompileError) as caught:
        compile(load(recipe("model")))
    assert [(p.line, p.code) for p in caught.value.problems] == [(3, "target-config")]


def test_a_folder_without_a_config_is_said(recipe, tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(CompileError, match=r"a folder without config\.json"):
        compile(load(recipe("model")))
