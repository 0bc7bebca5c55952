"""In: rows and a weight. Out: RMSNorm through Triton. Legend: R rows, H width, P programs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.rms_norm.kernel import backward_kernel, forward_kernel

PROGRAMS, WARPS = 528, 8


def rms_norm(x: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] * rsqrt(mean(x²) + eps), rounded to x's dtype, times the weight. Keeps x and one scale per row.

    For tensors of which `implementation` says "triton".
    """
    return _RMSNorm.apply(x, weight_H, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        width, rows = x.shape[-1], x.numel() // x.shape[-1]
        out, scale = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        if rows:
            forward_kernel[(rows,)](x, weight, out, scale, eps, H=width, BLOCK=_block(width), num_warps=WARPS)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        width, rows = x.shape[-1], scale.shape[0]
        each = max(1, -(-rows // PROGRAMS))
        programs = -(-rows // each)
        grad_x = torch.empty_like(x)
        parts_PH = torch.empty(programs, width, dtype=torch.float32, device=x.device)
        if rows:
            backward_kernel[(programs,)](
                grads[0].contiguous(), x, weight, scale, grad_x, parts_PH, rows, each, H=width, BLOCK=_block(width),
                num_warps=WARPS,
            )  # fmt: skip
        return grad_x, parts_PH.sum(0).to(weight.dtype), None


def _block(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())
