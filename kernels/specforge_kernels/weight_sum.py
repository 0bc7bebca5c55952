"""In: rows that a weight met and the gradients of what it made of them, call after call. Out: the weight's gradient.

The matmuls add to the sum themselves, which costs a read of it; adding finished gradients takes three passes over each.
Legend: R rows, O outputs, I inputs.
"""

from __future__ import annotations

import torch


class WeightSum:
    """Sum over calls of grad^T @ rows, [O, I], in `dtype`; None: in that of the rows."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._sum: torch.Tensor | None = None
        self._pass = -1

    def add(self, grad_RO: torch.Tensor, rows_RI: torch.Tensor) -> None:
        dtype = self._dtype or rows_RI.dtype
        if dtype != rows_RI.dtype and not rows_RI.is_cuda:  # torch's CPU matmuls cannot widen
            grad_RO, rows_RI = grad_RO.to(dtype), rows_RI.to(dtype)
        last, self._pass = self._pass, backward_pass()
        if last != self._pass:
            self._sum = None  # of a pass that did not reach the weight
        kind = {} if dtype == rows_RI.dtype else {"out_dtype": dtype}
        if self._sum is None:
            self._sum = torch.mm(grad_RO.t(), rows_RI, **kind)
        else:
            torch.addmm(self._sum, grad_RO.t(), rows_RI, **kind, out=self._sum)

    def taken(self) -> torch.Tensor | None:
        """The sum, None without a call; a further call starts anew."""
        found, self._sum = self._sum, None
        return found


def backward_pass() -> int:
    """Which backward pass this thread is in; -1 outside of one."""
    return int(torch._C._current_graph_task_id())


def weight_gradient(grad_RO: torch.Tensor, rows_RI: torch.Tensor, total: WeightSum | None) -> torch.Tensor | None:
    """grad^T @ rows, for autograd; None where it was added to `total`."""
    if total is None:
        return grad_RO.t() @ rows_RI
    total.add(grad_RO, rows_RI)
    return None
