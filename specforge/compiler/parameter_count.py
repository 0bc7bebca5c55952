"""In: a Geometry. Out: the number of the target's parameters, for its memory and its prefill FLOPs.

Exact for the model types that tests/compiler/test_parameter_count.py names; else what that shape has.
"""

from __future__ import annotations

from specforge.settings import Geometry

_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text"}
_NORMS = {"gemma2": 4, "gemma3_text": 4, "cohere": 1, "cohere2": 1}  # of one layer; others have 2
_QKV_BIAS = {"qwen2"}


def parameter_count(geometry: Geometry) -> int:
    """Of the whole target, every expert of it; a tied head is counted once."""
    tables = geometry.vocab_size * geometry.hidden_size * (1 if geometry.tied_embeddings else 2)
    every = geometry.experts.count if geometry.experts else 0
    return tables + _layers(geometry, every) + geometry.hidden_size


def active_layer_parameters(geometry: Geometry) -> int:
    """Of all decoder layers together, those that multiply one token: of the experts only the ones it meets."""
    return _layers(geometry, geometry.experts.active if geometry.experts else 0)


def _layers(geometry: Geometry, met: int) -> int:
    """All decoder layers, with `met` of the routed experts."""
    hidden, experts = geometry.hidden_size, geometry.experts
    sparse = experts.layers if experts else 0
    count = geometry.num_layers * (_attention(geometry) + _NORMS.get(geometry.model_type, 2) * hidden)
    count += (geometry.num_layers - sparse) * 3 * hidden * geometry.intermediate_size
    if experts:
        router = hidden * experts.count
        count += sparse * (router + (met + experts.shared) * 3 * hidden * experts.intermediate_size)
    return count


def _attention(geometry: Geometry) -> int:
    hidden, heads, latent = geometry.hidden_size, geometry.num_heads, geometry.latent
    if latent:
        queries = heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        count = hidden * queries if rank is None else hidden * rank + rank + rank * queries
        count += hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        return count + (latent.kv_rank * (latent.nope_dim + latent.value_dim) + latent.value_dim * hidden) * heads
    queries, keys = heads * geometry.head_dim, geometry.num_kv_heads * geometry.head_dim
    count = hidden * (queries + 2 * keys) + queries * hidden
    if geometry.model_type in _QK_NORM:
        count += 2 * geometry.head_dim
    if geometry.model_type in _QKV_BIAS:
        count += queries + 2 * keys
    return count
