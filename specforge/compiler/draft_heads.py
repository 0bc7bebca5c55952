"""In: a target's Geometry, or a draft's config. Out: `DraftHeads`: heads that a recipe does not name, and why these."""

from __future__ import annotations

import math

import attrs

from specforge.settings import Geometry

# Key-value heads of a draft for a target that caches a latent instead; drafts and targets of this size use 8.
_KV_HEADS = 8


@attrs.frozen
class DraftHeads:
    """Sizes of a Llama-like attention; the reasons say where each is taken from."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    heads_reason: str = "the target's"
    kv_reason: str = "the target's"
    dim_reason: str = "the target's"


def draft_heads(geometry: Geometry, own: Geometry | None = None) -> DraftHeads:
    """Those of the draft's `own` config; else the target's; for latent attention a Llama's, as wide as its values.

    The heads of latent attention are more than its hidden size holds, and every one has keys of its own.
    """
    if own is not None:
        return DraftHeads(own.num_heads, own.num_kv_heads, own.head_dim, *["the draft's config"] * 3)
    if geometry.latent is None:
        return DraftHeads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim)
    heads = max(1, geometry.hidden_size // geometry.head_dim)
    return DraftHeads(
        heads,
        math.gcd(heads, _KV_HEADS),
        geometry.head_dim,
        "hidden size / v_head_dim (MLA)",
        "8, or what divides heads (MLA)",
        "the target's v_head_dim (MLA)",
    )
