"""In: the own keys and values of TTT steps, one after the other. Out: one buffer of them all, and one of gradients.

Legend: k steps, Q query rows, G key-value heads, d key width, e value width.
"""

from __future__ import annotations

from typing import Any

import torch

from specforge_kernels.weight_sum import backward_pass


class Buffers:
    """What every step of an unroll reads and adds to: keys, values and, in a backward pass, their gradients.

    It knows no tensor of the graph: a graph that held itself would keep its memory until Python looks for cycles.
    """

    def __init__(self, steps: int, key_QGd: torch.Tensor, value_QGe: torch.Tensor) -> None:
        self.keys_kQGd, self.values_kQGe = (x.new_empty(steps, *x.shape) for x in (key_QGd, value_QGe))
        self.grad_keys_kQGd: torch.Tensor | None = None
        self.grad_values_kQGe: torch.Tensor | None = None
        self._pass = -1

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers to add to; of zeros when the first step of a backward pass asks."""
        last, self._pass = self._pass, backward_pass()
        if last != self._pass or self.grad_keys_kQGd is None or self.grad_values_kQGe is None:
            self.grad_keys_kQGd, self.grad_values_kQGe = (
                torch.zeros_like(x) for x in (self.keys_kQGd, self.values_kQGe)
            )
        return self.grad_keys_kQGd, self.grad_values_kQGe

    def taken(self, step: int) -> None:
        """Step 0 is the last to be taken back: nothing is kept for longer."""
        if step == 0:
            self.grad_keys_kQGd = self.grad_values_kQGe = None


class OwnPairs:
    """The suffix of one unroll: its `buffers` are written once and read in place by every later step.

    `append` takes what step i adds; `tokens` tie the steps that read it to its gradient, which they add to the buffers
    one after the other, the last step first.
    """

    def __init__(self, steps: int, key_QGd: torch.Tensor, value_QGe: torch.Tensor) -> None:
        self.buffers = Buffers(steps, key_QGd, value_QGe)
        self.tokens: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, key_QGd: torch.Tensor, value_QGe: torch.Tensor) -> None:
        """At most as many rows as the step before."""
        self.tokens.append(_Put.apply(key_QGd, value_QGe, self.buffers, len(self.tokens)))


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, key: torch.Tensor, value: torch.Tensor, buffers: Buffers, step: int) -> torch.Tensor:
        buffers.keys_kQGd[step, : len(key)] = key
        buffers.values_kQGe[step, : len(value)] = value
        ctx.buffers, ctx.place = buffers, (step, len(key))
        return key.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        keys_kQGd, values_kQGe = ctx.buffers.gradients()
        step, count = ctx.place
        ctx.buffers.taken(step)
        return keys_kQGd[step, :count], values_kQGe[step, :count], None, None
