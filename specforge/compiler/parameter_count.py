"""In: a Geometry. Out: the number of the target's parameters, for its memory and its prefill FLOPs."""

from __future__ import annotations

from specforge.settings import Geometry

_QK_NORM = {"qwen3"}
_QKV_BIAS = {"qwen2"}


def layer_parameters(geometry: Geometry) -> int:
    """Of one decoder layer with a gated MLP. Exact for llama, mistral, qwen2 and qwen3; else what that shape has."""
    hidden, queries = geometry.hidden_size, geometry.num_heads * geometry.head_dim
    keys = geometry.num_kv_heads * geometry.head_dim
    attention = hidden * (queries + 2 * keys) + queries * hidden
    if geometry.model_type in _QK_NORM:
        attention += 2 * geometry.head_dim
    if geometry.model_type in _QKV_BIAS:
        attention += queries + 2 * keys
    return attention + 3 * hidden * geometry.intermediate_size + 2 * hidden


def parameter_count(geometry: Geometry) -> int:
    """Of the whole target; a tied head is counted once."""
    tables = geometry.vocab_size * geometry.hidden_size * (1 if geometry.tied_embeddings else 2)
    return tables + geometry.num_layers * layer_parameters(geometry) + geometry.hidden_size
