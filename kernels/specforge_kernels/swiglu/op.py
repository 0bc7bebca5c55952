"""In: gate and up projections, the down weight, a residual. Out: residual + down(silu(gate) * up), through Triton.

The product [Q, I] is made again in the backward pass. Legend: Q rows, I intermediate, H hidden.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from specforge_kernels.weight_sum import WeightSum, weight_gradient

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.swiglu.kernel import gradient_kernel, product_kernel

BLOCK, WARPS = 4096, 8


def gated_down(
    gate_QI: torch.Tensor,
    up_QI: torch.Tensor,
    down_HI: torch.Tensor,
    added_QH: torch.Tensor,
    down_sum: WeightSum | None = None,
) -> torch.Tensor:
    """[Q, H] = added + (silu(gate) * up) @ down^T, the product in one pass in float32.

    For tensors of which `implementation.py` says "triton". `down_sum`: takes the gradient of `down_HI`.
    """
    return _GatedDown.apply(gate_QI, up_QI, down_HI, added_QH, down_sum)


def product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of packed tensors, through Triton; no gradients."""
    out = torch.empty_like(gate)
    _launch(product_kernel, gate, up, out)
    return out


def gradients(
    gate: torch.Tensor, up: torch.Tensor, grad_product: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The product again, and the gradients of gate and up."""
    outs = tuple(torch.empty_like(gate) for _ in range(3))
    _launch(gradient_kernel, gate, up, grad_product, *outs)
    return outs


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, added: torch.Tensor, total: WeightSum | None
    ) -> torch.Tensor:
        ctx.total = total
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up, down)
        return torch.addmm(added, product(gate, up), down.t())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gate, up, down = ctx.saved_tensors
        again, grad_gate, grad_up = gradients(gate, up, torch.matmul(grads[0], down))
        return grad_gate, grad_up, weight_gradient(grads[0], again, ctx.total), grads[0], None


def _launch(kernel: Any, *tensors: torch.Tensor) -> None:
    count = tensors[0].numel()
    with torch.autograd.profiler.record_function("swiglu"):
        if count:
            kernel[(-(-count // BLOCK),)](*tensors, count, BLOCK=BLOCK, num_warps=WARPS)
