"""In: queries, keys and values of one TTT step. Out: its attention, as the formula reads (EAGLE-3, arXiv 2503.01840).

Legend: Q query rows, C key rows, N query heads, G key-value heads, d key width, e value width, k suffix steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Rows:
    """Document and position of each query and key row, int64. `window`: 0, or how many positions back a query sees."""

    document_Q: torch.Tensor
    position_Q: torch.Tensor
    document_C: torch.Tensor
    position_C: torch.Tensor
    window: int = 0


def reference(
    query_QNd: torch.Tensor,
    key_CGd: torch.Tensor,
    value_CGe: torch.Tensor,
    suffix_keys: Sequence[torch.Tensor],
    suffix_values: Sequence[torch.Tensor],
    rows: Rows,
) -> torch.Tensor:
    """out [Q, N, e]: query t sees {K_0[j] : j <= t, same document} and its own {K_i[t] : i = 1..k}; one softmax.

    With a window only j > t - window. `suffix_keys[i]` [at least Q, G, d]: row r belongs to query r. Builds all of
    Q x C: for tests and small inputs.
    """
    (count, heads, width), kv_heads = query_QNd.shape, key_CGd.shape[1]
    q = query_QNd.view(count, kv_heads, heads // kv_heads, width)
    base = torch.einsum("qghd,cgd->qghc", q, key_CGd)
    back_QC = rows.position_Q[:, None] - rows.position_C
    seen_QC = (rows.document_Q[:, None] == rows.document_C) & (back_QC >= 0)
    if rows.window:
        seen_QC &= back_QC < rows.window
    base = base.masked_fill(~seen_QC[:, None, None, :], float("-inf"))
    own = [torch.einsum("qghd,qgd->qgh", q, k[:count])[..., None] for k in suffix_keys]
    wide = torch.promote_types(query_QNd.dtype, torch.float32)
    p = torch.softmax(torch.cat([base, *own], dim=-1).to(wide) / width**0.5, dim=-1).to(query_QNd.dtype)
    keys = key_CGd.shape[0]
    out = torch.einsum("qghc,cge->qghe", p[..., :keys], value_CGe)
    for i, value in enumerate(suffix_values):
        out = out + p[..., keys + i, None] * value[:count, :, None, :]
    return out.reshape(count, heads, value_CGe.shape[2])
