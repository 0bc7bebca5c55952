"""In: projections of queries, keys and values side by side. Out: the three apart, each packed; on a GPU through Triton.

Nothing of the projections is kept for the backward pass. Legend: Q rows, N query heads, G key-value heads, P = N + 2G,
d head width, h = d/2.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from specforge_kernels.implementation import implementation as chosen
from specforge_kernels.split_rotate.rotate import rotate

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.split_rotate.kernel import split_rotate_kernel

HEADS_AT_ONCE = 16


def split_rotate(
    qkv_QPd: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    heads: int,
    kv_heads: int,
    implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query [Q, N, d] and key [Q, G, d], rotated, and value [Q, G, d]. `turn`: cos and sin, float32 [Q, 1, h]."""
    if chosen(qkv_QPd.device, qkv_QPd.dtype, implementation) == "torch":
        turned_QXd, value_QGd = qkv_QPd.split([heads + kv_heads, kv_heads], dim=1)
        return *rotate(turned_QXd, *turn).split([heads, kv_heads], dim=1), value_QGd
    return _SplitRotate.apply(qkv_QPd.contiguous(), *(t.contiguous() for t in turn), heads, kv_heads)


class _SplitRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, kv_heads: int) -> Any:
        parts = tuple(qkv.new_empty(len(qkv), n, qkv.shape[2]) for n in (heads, kv_heads, kv_heads))
        ctx.save_for_backward(cos, sin)
        _launch(qkv, parts, (cos, sin), backward=False)
        return parts

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = tuple(g.contiguous() for g in grads)
        grad = parts[0].new_empty(len(parts[0]), sum(p.shape[1] for p in parts), parts[0].shape[2])
        _launch(grad, parts, ctx.saved_tensors, backward=True)
        return grad, None, None, None, None


def _launch(qkv: torch.Tensor, parts: tuple[torch.Tensor, ...], turn: Any, backward: bool) -> None:
    rows, total, width = qkv.shape
    half = width // 2
    block = 1 << (half - 1).bit_length()
    with torch.autograd.profiler.record_function("split_rotate"):
        if rows:
            split_rotate_kernel[(rows, -(-total // HEADS_AT_ONCE))](
                qkv, *parts, *turn, N=parts[0].shape[1], G=parts[1].shape[1], h=half, BP=HEADS_AT_ONCE, Bh=block,
                BACKWARD=backward, num_warps=4,
            )  # fmt: skip
