"""In: toy targets and documents. Out: captured features equal Hugging Face's own hidden states, row by row."""

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma3Config, LlamaConfig, PretrainedConfig, Qwen3Config

from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document
from specforge.runtime.target import Placement, TargetModel, load_target
from specforge.settings import CaptureSettings, Geometry, Logits, TargetSettings

pytestmark = pytest.mark.cpu
LAYERS, VOCABULARY, HIDDEN = 4, 90, 32
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"], tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"], tie_word_embeddings=True),
    "gemma3": Gemma3Config(
        text_config={**SIZES, "sliding_window": 5},
        vision_config={**VISION, "image_size": 8, "patch_size": 4},
        mm_tokens_per_image=4,
        image_token_index=80,
        architectures=["Gemma3ForConditionalGeneration"],
    ),
}


@pytest.fixture(params=CONFIGS)
def target(request: pytest.FixtureRequest, geometry: Geometry, tmp_path: Path) -> TargetModel:
    config = CONFIGS[request.param]
    config.to_json_file(tmp_path / "config.json", use_diff=False)
    tied = bool(config.get_text_config().tie_word_embeddings)
    sizes = attrs.evolve(geometry, num_layers=LAYERS, vocab_size=VOCABULARY, tied_embeddings=tied)
    settings = TargetSettings(request.param, None, "config.json", 5, sizes, 0)
    return load_target(settings, tmp_path, Placement("cpu", "float32"))


@pytest.fixture
def geometry() -> Geometry:
    return Geometry(
        architecture="toy",
        model_type="toy",
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=VOCABULARY,
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


def capture_settings(layers: tuple[int, ...] = (2, 0), last_hidden: bool = True, dtype: str = "float32", **more):
    return CaptureSettings(layers, last_hidden, dtype, batch_documents=3, **more)


def documents(*lengths: int) -> list[Document]:
    chance = np.random.default_rng(11)
    return [
        Document(i, chance.integers(0, VOCABULARY - 15, n).astype(np.int32), np.ones(n, bool))
        for i, n in enumerate(lengths)
    ]


def hugging_face(target: TargetModel, document: Document) -> tuple[torch.Tensor, ...]:
    """Hidden states [T, H] of the whole causal model: the embedding, then each layer, the last one post-norm."""
    tokens = torch.from_numpy(document.tokens.astype(np.int64))[None]
    with torch.no_grad():
        return tuple(h[0] for h in target.model(input_ids=tokens, output_hidden_states=True).hidden_states)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_every_boundary_is_hugging_faces_next_hidden_state(target: TargetModel, layer: int) -> None:
    (document,) = documents(13)
    (features,) = TransformersEngine(target, capture_settings((layer,))).capture([document])
    states = hugging_face(target, document)
    torch.testing.assert_close(features.last_TH, states[-1], rtol=0, atol=1e-5)
    if layer < LAYERS - 1:
        torch.testing.assert_close(features.aux_TC, states[layer + 1], rtol=0, atol=1e-5)
        assert not torch.allclose(features.aux_TC, states[layer], atol=1e-3)
    else:  # Hugging Face norms the last one; ours is what goes into that norm
        assert not torch.allclose(features.aux_TC, states[-1], atol=1e-3)
        torch.testing.assert_close(target.decoder.norm(features.aux_TC), states[-1], rtol=0, atol=1e-5)


def test_layers_stand_side_by_side_in_the_order_asked_for(target: TargetModel) -> None:
    (document,) = documents(7)
    (features,) = TransformersEngine(target, capture_settings((2, 0, 1))).capture([document])
    states = hugging_face(target, document)
    torch.testing.assert_close(features.aux_TC, torch.cat([states[3], states[1], states[2]], -1), rtol=0, atol=1e-5)


def test_the_head_gives_the_targets_logits(target: TargetModel) -> None:
    (document,) = documents(9)
    (features,) = TransformersEngine(target, capture_settings()).capture([document])
    with torch.no_grad():
        logits = target.model(input_ids=torch.from_numpy(document.tokens.astype(np.int64))[None]).logits[0]
    torch.testing.assert_close(features.last_TH @ target.head_VH.T, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_company_changes_nothing(target: TargetModel, packed: bool) -> None:
    """Against Hugging Face's states of each document alone; gemma3's window is shorter than the documents."""
    batch = documents(5, 17, 1, 30)
    engine = TransformersEngine(target, capture_settings(packed=packed))
    assert (engine.packed, engine.note) == (packed, "")
    for document, features in zip(batch, engine.capture(batch)):
        states = hugging_face(target, document)
        torch.testing.assert_close(features.aux_TC, torch.cat([states[3], states[1]], dim=1), rtol=0, atol=1e-5)
        torch.testing.assert_close(features.last_TH, states[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_batch_gives_the_same_bits(target: TargetModel, packed: bool) -> None:
    batch = documents(5, 17, 9)
    first, again = (TransformersEngine(target, capture_settings(packed=packed)).capture(batch) for _ in range(2))
    for a, b in zip(first, again):
        assert torch.equal(a.aux_TC, b.aux_TC)
        assert torch.equal(a.last_TH, b.last_TH)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_packed_capture_is_tried_in_the_dtype_of_the_run(target: TargetModel, dtype: str) -> None:
    target.model.to(getattr(torch, dtype))
    assert TransformersEngine(target, capture_settings(packed=True)).packed


def test_a_target_whose_layers_mix_documents_is_captured_padded_and_says_so(target: TargetModel) -> None:
    """A layer that adds a running mean over all rows, as linear attention or a state space would carry a state on."""

    def mixing(module: torch.nn.Module, args: object, out: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(1, out.shape[1] + 1)[:, None]
        return out + out.cumsum(1) / rows

    hook = target.decoder.layers[1].register_forward_hook(mixing)
    engine = TransformersEngine(target, capture_settings(packed=True))
    hook.remove()
    assert not engine.packed
    assert engine.note.startswith(f"{target.settings.name} is captured in padded batches: a document behind another")
    padded = TransformersEngine(target, capture_settings())
    for some, other in zip(engine.capture(documents(5, 9)), padded.capture(documents(5, 9))):
        assert torch.equal(some.last_TH, other.last_TH)


def test_layers_that_packed_capture_does_not_know_are_named(target: TargetModel, monkeypatch) -> None:
    config = target.model.config.get_text_config()
    monkeypatch.setattr(config, "layer_types", ["full_attention", "chunked_attention"] * 2, raising=False)
    engine = TransformersEngine(target, capture_settings(packed=True))
    assert not engine.packed
    assert "it has layers of chunked_attention, which packed capture does not know" in engine.note


def test_scores_that_are_soft_capped_are_captured_padded(geometry: Geometry, tmp_path: Path) -> None:
    Gemma2Config(**SIZES, architectures=["Gemma2ForCausalLM"]).to_json_file(tmp_path / "config.json", use_diff=False)
    sizes = attrs.evolve(
        geometry, num_layers=LAYERS, vocab_size=VOCABULARY, tied_embeddings=True, logits=Logits(softcap=30.0)
    )
    settings = TargetSettings("gemma2", None, "config.json", 5, sizes, 0)
    target = load_target(settings, tmp_path, Placement("cpu", "float32"))
    engine = TransformersEngine(target, capture_settings(packed=True))
    assert not engine.packed
    assert "its scores are soft-capped at 50" in engine.note
    with pytest.raises(
        ValueError, match=r"another geometry than the plan: logits is Logits\(scale=1.0, softcap=30.0\)"
    ):
        load_target(
            attrs.evolve(settings, geometry=attrs.evolve(sizes, logits=Logits())), tmp_path, Placement("cpu", "float32")
        )


def test_the_target_keeps_its_own_attention(target: TargetModel) -> None:
    before = target.model.config._attn_implementation
    TransformersEngine(target, capture_settings(packed=True)).capture(documents(4, 6))
    assert target.model.config._attn_implementation == before


def test_features_own_their_memory_and_feed_a_backward(target: TargetModel) -> None:
    batch = documents(5, 17)
    for features in TransformersEngine(target, capture_settings(dtype="bfloat16")).capture(batch):
        for tensor in attrs.astuple(features, recurse=False):
            assert tensor.dtype == torch.bfloat16
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert not tensor.requires_grad
        weight = torch.ones(features.aux_TC.shape[1], dtype=torch.bfloat16, requires_grad=True)
        (features.aux_TC @ weight).sum().backward()
        assert weight.grad is not None


def test_what_is_not_wanted_has_no_columns(target: TargetModel) -> None:
    batch = documents(6)
    (last_only,) = TransformersEngine(target, capture_settings(layers=())).capture(batch)
    (aux_only,) = TransformersEngine(target, capture_settings(last_hidden=False)).capture(batch)
    assert shapes(last_only) == [(6, 0), (6, HIDDEN)]
    assert shapes(aux_only) == [(6, 2 * HIDDEN), (6, 0)]


def shapes(features: Features) -> list[tuple[int, ...]]:
    return [tuple(features.aux_TC.shape), tuple(features.last_TH.shape)]


def test_no_hook_stays_even_after_a_failure(target: TargetModel) -> None:
    engine = TransformersEngine(target, capture_settings())
    engine.capture(documents(4))
    removed = target.decoder.layers[3].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken layer"):
        engine.capture(documents(4))
    removed.remove()
    assert [len(layer._forward_hooks) for layer in target.decoder.layers] == [0] * LAYERS


def fail(*_: object) -> None:
    raise RuntimeError("broken layer")


def test_a_short_read_is_refused(target: TargetModel) -> None:
    engine = TransformersEngine(target, capture_settings())
    hook = target.decoder.register_forward_hook(drop_first_row)
    with pytest.raises(ValueError, match=r"asked for rows \(2, 9\), read \(2, 8\)"):
        engine.capture(documents(9, 4))
    hook.remove()


def drop_first_row(module: object, args: object, out) -> None:
    out.last_hidden_state = out.last_hidden_state[:, 1:]


def test_the_users_mistakes_are_named(target: TargetModel) -> None:
    with pytest.raises(ValueError, match="has layers 0 to 3, not 4, -1"):
        TransformersEngine(target, capture_settings((1, 4, -1)))
    engine = TransformersEngine(target, capture_settings())
    outside = Document(8, np.array([1, VOCABULARY], np.int32), np.ones(2, bool))
    with pytest.raises(ValueError, match=f"document 8 has token ids from 1 to {VOCABULARY}, but .* has {VOCABULARY}"):
        engine.capture([outside])
    with pytest.raises(ValueError, match="document 0 has no tokens"):
        engine.capture(documents(0))
