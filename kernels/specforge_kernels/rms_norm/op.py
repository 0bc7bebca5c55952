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


def normed(x: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rms_norm` gives, and the scale of each row, float32 [R]; no gradients."""
    x = x.contiguous()
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    out, scale_R = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        forward_kernel[(rows,)](x, weight_H, out, scale_R, eps, H=width, BLOCK=_block(width), num_warps=WARPS)
    return out, scale_R


def norm_gradients(
    grad: torch.Tensor, x: torch.Tensor, weight_H: torch.Tensor, scale_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x and of the weight, from the gradient of `normed`'s first."""
    x, width, rows = x.contiguous(), x.shape[-1], scale_R.shape[0]
    each = max(1, -(-rows // PROGRAMS))
    programs = -(-rows // each)
    grad_x = torch.empty_like(x)
    parts_PH = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    if rows:
        backward_kernel[(programs,)](
            grad.contiguous(), x, weight_H, scale_R, grad_x, parts_PH, rows, each, H=width, BLOCK=_block(width),
            num_warps=WARPS,
        )  # fmt: skip
    return grad_x, parts_PH.sum(0).to(weight_H.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *norm_gradients(grads[0], *ctx.saved_tensors), None


def _block(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())
