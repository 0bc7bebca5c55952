"""In: toy models on disk, in the caches or random. Out: `load_target` and `load_tokenizer` give them or say why not."""

import json
import shutil
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, LlamaConfig, LlamaForCausalLM

from specforge.runtime.fetch import FETCHABLE
from specforge.runtime.target import Placement, TargetModel, find_folder, load_target, load_tokenizer
from specforge.settings import Geometry, TargetSettings

pytestmark = pytest.mark.cpu
CPU = Placement("cpu", "float32")
GEOMETRY = Geometry(
    architecture="LlamaForCausalLM",
    model_type="llama",
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=90,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    rope={"rope_type": "default", "rope_theta": 10000.0},
    tied_embeddings=False,
    bos_token_id=1,
    eos_token_ids=(2,),
    pad_token_id=0,
    initializer_range=0.02,
    weights_dtype="float32",
)
SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def settings(name: str = "toy/llama", folder: str | None = "model", seed: int | None = None, tied: bool = False):
    geometry = attrs.evolve(GEOMETRY, tied_embeddings=tied)
    return TargetSettings(name, folder, "model/config.json", seed, geometry, 0)


def llama(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).to(torch.float32)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(8)[None]).logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_loads_single_file_and_sharded_weights_tied_or_not(tmp_path: Path, tied: bool, shard: str) -> None:
    model = llama(tied)
    model.save_pretrained(tmp_path / "model", max_shard_size=shard)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == (shard == "20KB")

    target = load_target(settings(tied=tied), tmp_path, CPU)

    assert torch.equal(logits(target.model), logits(model))
    assert torch.equal(target.head_VH, model.lm_head.weight)
    assert torch.equal(target.embedding_VH, model.model.embed_tokens.weight)
    assert (target.head_VH.data_ptr() == target.embedding_VH.data_ptr()) == tied
    assert target.folder == tmp_path / "model"


def test_is_frozen_and_placed(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    target = load_target(settings(), tmp_path, Placement("cpu", "bfloat16"))
    assert not target.model.training
    assert not any(p.requires_grad for p in target.model.parameters())
    assert {p.dtype for p in target.model.parameters()} == {torch.bfloat16}
    assert target.model.config._attn_implementation == "sdpa"
    assert target.device == torch.device("cpu")


def test_a_wrapper_gives_its_text_models_parts(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**SIZES, "sliding_window": 8},
        vision_config={**vision, "image_size": 8, "patch_size": 4},
        mm_tokens_per_image=4,
        image_token_index=80,
    )
    torch.manual_seed(0)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    assert "hidden_size" not in json.loads((tmp_path / "model" / "config.json").read_text())

    target = load_target(settings(tied=True), tmp_path, CPU)

    assert target.head_VH.shape == target.embedding_VH.shape == (90, 32)
    assert len(target.decoder.layers) == 3
    assert target.decoder.embed_tokens.weight is target.embedding_VH


def test_random_weights_are_the_seeds_and_leave_the_generator_alone(tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path / "model")
    torch.manual_seed(9)
    before = torch.get_rng_state()
    first = load_target(settings(seed=1), tmp_path, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(10)
    again, other = (load_target(settings(seed=seed), tmp_path, CPU) for seed in (1, 2))
    assert first.folder is None
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters()))
    assert not torch.equal(first.head_VH, other.head_VH)


def test_a_config_that_random_weights_need_and_that_is_gone_is_named(tmp_path: Path) -> None:
    """Whoever moves a recipe's folder meets this in eval and export."""
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/model/config.json is not there.*'model/config.json' from .*{tmp_path}: put"
    ):
        load_target(settings(seed=1), tmp_path, CPU)


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "nope"}', '{"model_type": "llama", "hidden_size": "x"}'])
def test_a_damaged_config_is_named(tmp_path: Path, seed: int | None, text: str) -> None:
    llama().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"model/config.json cannot be read as a transformers config: .* Restore"):
        load_target(settings(seed=seed), tmp_path, CPU)


def test_random_teachers_are_far_from_uniform(tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path / "model")
    target = load_target(settings(seed=1), tmp_path, CPU)
    log_p = logits(target.model).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    assert entropy < 0.6 * torch.log(torch.tensor(90.0))


def test_finds_a_name_in_specforges_cache_then_in_hugging_faces(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--toy--llama" / "snapshots" / "0123abc"
    llama().save_pretrained(snapshot)
    refs = tmp_path / "hub" / "models--toy--llama" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123abc")
    assert find_folder(settings(folder=None), tmp_path) == snapshot
    assert load_target(settings(folder=None), tmp_path, CPU).folder == snapshot

    ours = tmp_path / "cache" / "targets" / "toy--llama"
    shutil.copytree(snapshot, ours)
    assert find_folder(settings(folder=None), tmp_path) == ours

    shutil.rmtree(ours)
    (snapshot / "model.safetensors").unlink()  # what is left is enough to compile, not to run
    with pytest.raises(ValueError, match=r"Run: hf download toy/llama$"):
        find_folder(settings(folder=None), tmp_path)


@pytest.mark.parametrize("name", ["toy/llama", "no such/folder/here", "../up"])
def test_a_name_that_is_nowhere_names_the_command(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"target {name}: .*Run: hf download {name}$"):
        load_target(settings(name, folder=None), tmp_path, CPU)


def test_a_fetchable_name_that_is_nowhere_names_specforge_fetch(tmp_path: Path) -> None:
    name = next(iter(FETCHABLE))
    with pytest.raises(ValueError, match=f"Run: specforge fetch {name}$"):
        load_target(settings(name, folder=None), tmp_path, CPU)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model has no config\.json"):
        load_target(settings(), tmp_path, CPU)


def test_a_local_folder_without_a_config_takes_the_plans(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").rename(tmp_path / "other.json")
    target = load_target(attrs.evolve(settings(), config="other.json"), tmp_path, CPU)
    assert torch.equal(logits(target.model), logits(llama()))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def truncated(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def no_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(31)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_weights, "cannot be read: .*safetensors"),
        (truncated, "cannot be read: "),
        (no_head, r"do not fit its config.json in 1 tensors: lm_head\.weight is missing"),
        (other_shape, r"do not fit its config.json in 1 tensors: model\.norm\.weight is \[31\], not \[32\]"),
    ],
)
def test_damaged_weights_are_refused(tmp_path: Path, damage, message: str) -> None:
    llama().save_pretrained(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match=f"target toy/llama: the weights in .*model.* {message}"):
        load_target(settings(), tmp_path, CPU)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model", max_shard_size="20KB")
    next((tmp_path / "model").glob("model-00002-*.safetensors")).unlink()
    with pytest.raises(ValueError, match=r"cannot be read: .*model-00002"):
        load_target(settings(), tmp_path, CPU)


def test_another_geometry_is_refused_with_every_difference(tmp_path: Path) -> None:
    llama(tied=True).save_pretrained(tmp_path / "model")
    planned = attrs.evolve(settings(), geometry=attrs.evolve(GEOMETRY, num_layers=4, vocab_size=100))
    with pytest.raises(
        ValueError,
        match="num_layers is 3, planned 4; vocab_size is 90, planned 100; tied_embeddings is True, planned False",
    ):
        load_target(planned, tmp_path, CPU)


def test_a_head_that_does_more_than_a_matmul_is_refused(tmp_path: Path) -> None:
    model = llama()
    model.config.final_logit_softcapping = 30.0
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"not the head's alone \(final_logit_softcapping is 30\.0\)"):
        load_target(settings(), tmp_path, CPU)


def test_the_tokenizer_is_the_targets_own(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "model" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages[0].content }}"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(settings(), tmp_path)
    assert tokenizer("b a c", add_special_tokens=False)["input_ids"] == [1, 0, 2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"


def test_no_tokenizer_is_a_users_error(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="no tokenizer can be loaded from"):
        load_tokenizer(settings(), tmp_path)
    with pytest.raises(ValueError, match=r"has random weights \(random_seed=4\) and so no tokenizer"):
        load_tokenizer(settings(seed=4), tmp_path)


def test_a_model_without_a_decoder_is_refused(tmp_path: Path) -> None:
    target = TargetModel(torch.nn.Linear(2, 2), settings(), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Linear has no decoder with embed_tokens, layers"):
        _ = target.decoder
