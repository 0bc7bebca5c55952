"""In: a weight that every step of an unroll reads. Out: the same, with one gradient for all of them.

Autograd forms a gradient per read and adds them up. Tied, each read's matmul adds to one sum (`WeightSum`), and the
weight gets that. Reads that a backward pass does not reach are not in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from specforge_kernels.weight_sum import WeightSum, weight_gradient


class Tied(NamedTuple):
    """A weight to read. `sum`: takes its gradient, where autograd is given none; None where it is."""

    weight: torch.Tensor
    sum: WeightSum | None = None


class Ties:
    """The tied weights of one unroll."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, Tied]] = {}

    def of(self, weight: torch.Tensor) -> Tied:
        """The same for every read of `weight`."""
        if not (weight.requires_grad and torch.is_grad_enabled()):
            return Tied(weight)
        if id(weight) not in self._known:
            total = WeightSum()
            self._known[id(weight)] = weight, Tied(_Tie.apply(weight, total), total)
        return self._known[id(weight)][1]


class NoTies(Ties):
    """Weights as they are, for one read each."""

    def of(self, weight: torch.Tensor) -> Tied:
        return Tied(weight)


def added(residual_RO: torch.Tensor, rows_RI: torch.Tensor, tied: Tied) -> torch.Tensor:
    """residual + rows @ weight^T, the sum formed by the matmul and rounded once."""
    if tied.sum is None:
        return torch.addmm(residual_RO, rows_RI, tied.weight.t())
    return _Added.apply(residual_RO, rows_RI, *tied)


class _Tie(torch.autograd.Function):
    """Its backward pass runs when those of all reads that are reached have run."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, total: WeightSum) -> torch.Tensor:
        ctx.total = total
        ctx.set_materialize_grads(False)
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return ctx.total.taken(), None


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual, rows, weight, total):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(rows, weight)
        ctx.total = total
        return torch.addmm(residual, rows, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        return grads[0], grads[0] @ weight, weight_gradient(grads[0], rows, ctx.total), None
