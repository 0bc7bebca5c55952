"""In: checkpoints of toy drafts. Out: folders with exact keys, dtypes and config, which read back bit for bit."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from specforge.compiler import compile, load
from specforge.plan import Plan
from specforge.runtime.checkpoint.export import export, export_config, export_keys, export_tensors
from specforge.runtime.checkpoint.save import save
from specforge.runtime.checkpoint.saved_draft import read_draft
from specforge.runtime.checkpoint.state import Checkpoint, CheckpointError, State
from specforge.runtime.target import Placement, load_target
from specforge.runtime.writing import WriteError
from specforge.settings import DraftSettings, Parameter

pytestmark = pytest.mark.cpu
REPOSITORY = Path(__file__).parents[3]
EAGLE3_KEYS = {
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    *(f"midlayer.{n}.weight" for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
    *(f"midlayer.self_attn.{n}_proj.weight" for n in "qkvo"),
    *(f"midlayer.mlp.{n}_proj.weight" for n in ("gate", "up", "down")),
}


def _tensors(draft: DraftSettings) -> dict[str, torch.Tensor]:
    """Random float32 masters, and a vocabulary map that keeps every second token."""
    generator = torch.Generator().manual_seed(1)
    tensors = {p.name: torch.randn(p.shape, generator=generator) for p in draft.parameters}
    kept = torch.arange(draft.draft_vocab_size) * 2
    t2d = torch.zeros(draft.vocab_size, dtype=torch.bool)
    t2d[kept] = True
    return {**tensors, "d2t": kept - torch.arange(len(kept)), "t2d": t2d}


def _checkpoint(run: Path, plan: Plan) -> Path:
    """The checkpoint of `plan` after 5 steps, without the frozen embedding, as training writes it."""
    draft = plan.op("train").settings.draft
    tensors = {name: t for name, t in _tensors(draft).items() if name != "embed_tokens.weight"}
    state = State(5, 0, 5, 10, 10, 1, 1, 0, None, None, plan.digest, {})
    return save(run / "checkpoints", Checkpoint(plan, state, tensors, {"step": torch.zeros(1)}), keep=2)


def test_sglang_export_has_exactly_the_keys_and_dtypes_that_sglang_reads(toy, tmp_path):
    folder = _checkpoint(tmp_path / "run", toy.plan())
    out = export(folder, "sglang", tmp_path / "out")
    written = load_file(out / "model.safetensors")
    assert set(written) == EAGLE3_KEYS
    assert {p.name for p in out.iterdir()} == {"model.safetensors", "config.json"}
    assert len({p.stat().st_mode for p in out.iterdir()}) == 1, "whoever reads the config must read the weights"
    for name, tensor in written.items():
        assert tensor.dtype == {"d2t": torch.int64, "t2d": torch.bool}.get(name, torch.bfloat16), name
    for name, tensor in read_draft(folder).checkpoint.draft.items():
        expected = tensor if name in ("d2t", "t2d") else tensor.to(torch.bfloat16)
        assert torch.equal(written[name], expected), name


def test_hf_export_adds_the_targets_embedding(toy, tmp_path):
    plan = toy.plan()
    out = export(_checkpoint(tmp_path / "run", plan), "hf", tmp_path / "out")
    written = load_file(out / "model.safetensors")
    assert set(written) == EAGLE3_KEYS | {"embed_tokens.weight"}
    target = load_target(plan.target, Path(plan.base), Placement("cpu", "float32"))
    assert torch.equal(written["embed_tokens.weight"], target.embedding_VH.to(torch.bfloat16))


def test_keys_follow_from_settings_alone(train_settings):
    draft = train_settings.draft
    assert set(export_keys(draft, "sglang")) == EAGLE3_KEYS
    assert set(export_keys(draft, "hf")) == EAGLE3_KEYS | {"embed_tokens.weight"}
    normed = attrs.evolve(
        draft,
        fc_norm=True,
        parameters=(*draft.parameters, *(Parameter(f"fc_norm.{i}.weight", (32,), "float32", True) for i in range(3))),
    )
    assert set(export_keys(normed, "sglang")) == EAGLE3_KEYS | {f"fc_norm.{i}.weight" for i in range(3)}


def test_a_draft_of_another_width_ships_its_embedding_to_sglang_too(train_settings):
    wide = attrs.evolve(train_settings.draft, target_hidden_size=64)
    assert "embed_tokens.weight" in export_keys(wide, "sglang")
    assert "embed_tokens.weight" in export_tensors(wide, "sglang", _tensors(wide))


def test_config_is_what_serving_reads(toy, tmp_path):
    plan = toy.plan()
    out = export(_checkpoint(tmp_path / "run", plan), "sglang", tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": 1,
        "vocab_size": 96,
        "draft_vocab_size": 40,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
        "fc_norm": False,
        "norm_output": False,
    }
    assert {key: config.get(key) for key in expected} == expected
    assert "target_hidden_size" not in config
    read = AutoConfig.from_pretrained(out)
    assert (read.hidden_size, read.rope_parameters["rope_theta"]) == (32, 10000.0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500000.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
)
def test_rope_is_written_in_both_schemas_of_transformers(toy, rope, tmp_path):
    plan = toy.plan()
    draft = attrs.evolve(plan.op("train").settings.draft, rope=rope, target_hidden_size=64)
    config = export_config(draft, plan.target.geometry)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    assert config["rope_theta"] == rope["rope_theta"]
    assert config["rope_scaling"] == (None if rope["rope_type"] == "default" else scaling)
    assert config["rope_parameters"] == rope
    assert config["target_hidden_size"] == 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == rope


def test_several_end_tokens_stay_a_list(toy):
    plan = toy.plan()
    geometry = attrs.evolve(plan.target.geometry, eos_token_ids=(2, 5), pad_token_id=None)
    config = export_config(plan.op("train").settings.draft, geometry)
    assert (config["eos_token_id"], config["pad_token_id"]) == ([2, 5], 0)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"])
def test_a_missing_tensor_is_named(train_settings, name):
    tensors = _tensors(train_settings.draft)
    del tensors[name]
    with pytest.raises(ValueError, match=f"cannot be exported: {name} is missing"):
        export_tensors(train_settings.draft, "sglang", tensors)


def test_a_tensor_of_another_shape_is_named(train_settings):
    tensors = {**_tensors(train_settings.draft), "fc.weight": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match=r"fc.weight has shape \(2, 2\), the plan says \(32, 96\)"):
        export_tensors(train_settings.draft, "hf", tensors)


def test_an_earlier_export_is_replaced_and_anything_else_is_refused(toy, tmp_path):
    folder, out = _checkpoint(tmp_path / "run", toy.plan()), tmp_path / "out"
    export(folder, "hf", out)
    export(folder, "sglang", out)
    assert "embed_tokens.weight" not in load_file(out / "model.safetensors")
    (out / "notes.txt").write_text("mine")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(ValueError, match="is not empty and is not an earlier export"):
        export(folder, "sglang", out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert {p.name for p in tmp_path.iterdir()} >= {"out", "run"}
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".out")]


def test_a_place_that_cannot_be_written_is_told_and_keeps_the_earlier_export(toy, tmp_path):
    folder, out = _checkpoint(tmp_path / "run", toy.plan()), tmp_path / "out"
    export(folder, "sglang", out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # what a full disk does, as EFBIG for ENOSPC
    try:
        with pytest.raises(WriteError, match=f"the export could not be written to {out}: .*File too large.*Free space"):
            export(folder, "hf", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["out", "run"]
    with pytest.raises(WriteError, match="the export could not be written to /proc/x: "):
        export(folder, "hf", Path("/proc/x"))


def test_another_models_folder_is_refused(toy, tmp_path):
    out = tmp_path / "model"
    out.mkdir()
    (out / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (out / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(ValueError, match="is not an earlier export"):
        export(_checkpoint(tmp_path / "run", toy.plan()), "hf", out)


def test_unknown_formats_and_places_without_a_checkpoint_are_refused(toy, tmp_path):
    with pytest.raises(ValueError, match="no export format 'vllm'; use one of: hf, sglang"):
        export(tmp_path, "vllm", tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        export(tmp_path, "hf", tmp_path / "out")
    with pytest.raises(CheckpointError, match="does not exist"):
        export(tmp_path / "nowhere", "hf", tmp_path / "out")


def test_a_runs_folder_means_its_latest_checkpoint(toy, tmp_path):
    folder = _checkpoint(tmp_path / "run", toy.plan())
    for place in (tmp_path / "run", tmp_path / "run" / "checkpoints", tmp_path / "run" / "checkpoints" / "latest"):
        assert read_draft(place).folder == folder.resolve()
        assert read_draft(place).checkpoint.state.step == 5


def test_an_exported_config_makes_the_same_draft_again(tmp_path):
    """`Draft(config=...)` on what was exported: every field of the draft."""
    tiny = REPOSITORY / "recipes" / "tiny_eagle3.py"
    first = compile(load(tiny))
    settings = first.op("train").settings.draft
    assert settings.draft_vocab_size == 128
    config = tmp_path / "config.json"
    config.write_text(json.dumps(export_config(settings, first.target.geometry)))
    again = compile(load(tiny, (f"train.draft.config={config}", "train.draft.vocab_size=None")))
    assert again.op("train").settings.draft == settings
