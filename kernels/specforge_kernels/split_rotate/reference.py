"""In: queries, keys and values side by side, rotary tables. Out: the formula, half-split rotary embedding (RoFormer).

Legend: Q rows, N query heads, G key-value heads, P = N + 2G, d head width, h = d/2.
"""

from __future__ import annotations

import torch


def reference(
    qkv_QPd: torch.Tensor, cos_Q1h: torch.Tensor, sin_Q1h: torch.Tensor, heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(low, high) -> (low cos - high sin, high cos + low sin) for queries and keys; values as they are."""
    turned_QXd, value_QGd = qkv_QPd.split([heads + kv_heads, kv_heads], dim=1)
    low, high = turned_QXd.chunk(2, dim=-1)
    turned_QXd = torch.cat([low * cos_Q1h - high * sin_Q1h, high * cos_Q1h + low * sin_Q1h], dim=-1).to(qkv_QPd.dtype)
    return *turned_QXd.split([heads, kv_heads], dim=1), value_QGd
