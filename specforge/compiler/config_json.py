"""In: a config.json as transformers writes it. Out: its Geometry."""

from __future__ import annotations

from typing import Any

from specforge.settings import Experts, Geometry, LatentAttention
from specforge.target_logits import logits_of

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_TIED_BY_DEFAULT = ("gemma", "cohere")


def geometry_of(config: dict[str, Any]) -> Geometry:
    """The Geometry of a config.json whose text_config, if any, was lifted to the top."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    eos, model_type = config.get("eos_token_id"), config.get("model_type", "unknown")
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    latent = _latent(config)
    return Geometry(
        architecture=(config.get("architectures") or ["unknown"])[0],
        model_type=model_type,
        hidden_size=hidden,
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=latent.value_dim if latent else config.get("head_dim") or hidden // heads,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config.get("max_position_embeddings") or 2048,
        rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
        hidden_act=config.get("hidden_act") or config.get("hidden_activation") or "silu",
        rope=_rope(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", model_type.startswith(_TIED_BY_DEFAULT))),
        bos_token_id=config.get("bos_token_id"),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        pad_token_id=config.get("pad_token_id"),
        initializer_range=float(config.get("initializer_range") or 0.02),
        weights_dtype=str(dtype).removeprefix("torch."),
        experts=_experts(config),
        latent=latent,
        logits=logits_of(config),
    )


def _experts(config: dict[str, Any]) -> Experts | None:
    """The same of the ways in which Qwen3-MoE, DeepSeek-V3 and Mixtral write it; None without a layer of experts."""
    counts = [config.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts")]
    count = next((int(n) for n in counts if n), 0)
    first, step = config.get("first_k_dense_replace") or 0, config.get("decoder_sparse_step") or 1
    dense = set(config.get("mlp_only_layers") or ())
    layers = [i for i in range(config["num_hidden_layers"]) if i >= first and i not in dense and (i + 1) % step == 0]
    if not count or not layers:
        return None
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    active, shared = int(config["num_experts_per_tok"]), int(config.get("n_shared_experts") or 0)
    return Experts(count, active, shared, int(width), len(layers))


def _latent(config: dict[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    sizes = (int(config[key]) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank = config.get("q_lora_rank")
    return LatentAttention(None if rank is None else int(rank), *sizes)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """One schema (transformers 5) for both ways a config writes its rotary embedding."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention") or rope)  # Gemma 3 has one for each kind of layer; the draft attends fully
    kind = rope.pop("type", None)
    rope.setdefault("rope_type", kind or "default")
    rope.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    return dict(sorted(rope.items()))
