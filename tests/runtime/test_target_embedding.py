"""In: toy models on disk or random. Out: their embedding, the very tensor of the loaded model, read alone."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, LlamaConfig, LlamaForCausalLM

from specforge.runtime import target_embedding
from specforge.runtime.target import Placement, load_target
from specforge.runtime.target_embedding import load_embedding

pytestmark = pytest.mark.cpu
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
FILE = "model/model.safetensors"


@pytest.fixture
def settings(toy):
    """A local folder `model` of the toy's geometry."""
    return attrs.evolve(toy.plan().target, folder="model", random_seed=None)


def tied(settings):
    return attrs.evolve(settings, geometry=attrs.evolve(settings.geometry, tied_embeddings=True))


def llama(tie: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tie))


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_it_is_the_models_and_nothing_else_is_loaded(settings, tmp_path: Path, monkeypatch, tie: bool, shard: str):
    model = llama(tie)
    model.save_pretrained(tmp_path / "model", max_shard_size=shard)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == (shard == "20KB")
    monkeypatch.setattr(target_embedding, "load_target", None)  # whoever loads the whole model now fails
    found = load_embedding(tied(settings) if tie else settings, tmp_path)
    assert torch.equal(found, model.model.embed_tokens.weight)


def test_of_a_wrapper_it_is_the_text_models(settings, tmp_path: Path):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**SIZES, "sliding_window": 8},
        vision_config={**vision, "image_size": 8, "patch_size": 4},
        mm_tokens_per_image=4,
        image_token_index=80,
    )
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    wrapper = attrs.evolve(tied(settings), config="model/config.json")
    target = load_target(wrapper, tmp_path, Placement("cpu", "float32"))
    assert torch.equal(load_embedding(wrapper, tmp_path), target.embedding_VH)


def test_a_tied_embedding_that_is_stored_as_the_head_is_found(settings, tmp_path: Path):
    llama(True).save_pretrained(tmp_path / "model")
    tensors = load_file(tmp_path / FILE)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / FILE, metadata={"format": "pt"})
    assert torch.equal(load_embedding(tied(settings), tmp_path), tensors["lm_head.weight"])
    with pytest.raises(ValueError, match=r"target toy-llama: .* there is no tensor embed_tokens\.weight"):
        load_embedding(settings, tmp_path)


def test_random_weights_are_drawn_as_the_run_draws_them(toy):
    plan = toy.plan()
    target = load_target(plan.target, toy.base, Placement("cpu", "float32"))
    assert torch.equal(load_embedding(plan.target, toy.base), target.embedding_VH)


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])


def gone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_map(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text("[]")


def missing_shard(folder: Path) -> None:
    gone(folder)
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("damage", [cut, gone, no_map, missing_shard])
def test_what_cannot_be_read_is_named(settings, tmp_path: Path, damage):
    llama().save_pretrained(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match=r"target toy-llama: its embedding cannot be read from .*model: .* Put all"):
        load_embedding(settings, tmp_path)


def test_another_shape_is_named(settings, tmp_path: Path):
    llama().save_pretrained(tmp_path / "model")
    wider = attrs.evolve(settings, geometry=attrs.evolve(settings.geometry, vocab_size=100))
    with pytest.raises(ValueError, match=r"is \[96, 32\], the plan says \[100, 32\]"):
        load_embedding(wider, tmp_path)
