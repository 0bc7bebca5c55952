"""In: logits of a chunk and a teacher. Out: the sweeps of kernel.py, launched. Legend: c rows of a chunk, d draft
vocabulary, V target vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from specforge_kernels.soft_target_loss.kernel import loss_kernel, teacher_kernel

BLOCK, WARPS = 4096, 8


def loss_sweep(
    logits_cd: torch.Tensor,
    taught: Any,
    index_c: torch.Tensor,
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kind: str,
    weights: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Fill `found` (cross-entropy, acceptance, top id, [c] each).

    `kind` "ce", "alpha", "lambda": the gradient goes over the logits; "none": they stay.
    `weights`: float32 [c], of the cross-entropy and of the acceptance (or its logarithm).
    """
    width = logits_cd.shape[1]
    with _on(logits_cd):
        loss_kernel[(logits_cd.shape[0],)](
            logits_cd, taught.logits_Ud, index_c, taught.lse_full_U, taught.lse_draft_U, *weights, *found, width,
            logits_cd.stride(0), taught.logits_Ud.stride(0), KIND=kind, V_BLOCK=_block(width), num_warps=WARPS,
        )  # fmt: skip


def teacher_sweep(
    logits_uV: torch.Tensor, kept_ids_d: torch.Tensor, draft_ud: torch.Tensor, figures: tuple[torch.Tensor, ...]
) -> None:
    """Fill `draft_ud` and `figures` (logsumexp full, logsumexp draft, argmax)."""
    vocab, width = logits_uV.shape[1], len(kept_ids_d)
    with _on(logits_uV):
        teacher_kernel[(logits_uV.shape[0],)](
            logits_uV, kept_ids_d, draft_ud, *figures, vocab, width, logits_uV.stride(0), draft_ud.stride(0),
            V_BLOCK=_block(vocab), num_warps=WARPS,
        )  # fmt: skip


def _block(width: int) -> int:
    return min(BLOCK, max(16, 1 << (width - 1).bit_length()))


def _on(x: torch.Tensor) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else torch.autograd.profiler.record_function("soft_target_loss")
