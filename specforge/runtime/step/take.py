"""In: rows and distinct indices. Out: those rows; the gradient goes back by a copy, not by adding with atomics."""

from __future__ import annotations

from typing import Any

import torch


def take(rows_RX: torch.Tensor, index_Q: torch.Tensor) -> torch.Tensor:
    """rows_RX[index_Q] for indices without repeats: deterministic, and faster than index_select's own gradient."""
    return _Take.apply(rows_RX, index_Q)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_RX: torch.Tensor, index_Q: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index_Q)
        ctx.shape = rows_RX.shape
        return rows_RX.index_select(0, index_Q)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index_Q,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.shape).index_copy_(0, index_Q, grads[0]), None
