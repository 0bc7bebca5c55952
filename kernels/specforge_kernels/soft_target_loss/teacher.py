"""In: the target's last hidden states and its head. Out: `Teacher`, all that the loss reads of the target, per row.

Row chunks: no [rows, vocabulary] tensor over the full vocabulary is ever kept.
Legend: U teacher rows, H target hidden, V target vocabulary, d draft vocabulary.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch

from specforge_kernels.implementation import implementation as chosen
from specforge_kernels.soft_target_loss.top import top

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.soft_target_loss.launch import teacher_sweep

CUDA_CHUNK_ELEMENTS = 1 << 28
CPU_CHUNK_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class Teacher:
    """The target's distribution at U rows: softmax over the draft vocabulary is exp(logits - lse_draft).

    `logits_Ud`: at the kept ids, in the head's dtype. `lse_full_U`, `lse_draft_U`: logsumexp over the full and the
    draft vocabulary, float32 or wider. `argmax_U`: int64, over the full vocabulary, the lowest id on ties.
    `implementation`: of what reads it, see implementation.py.
    """

    logits_Ud: torch.Tensor
    lse_full_U: torch.Tensor
    lse_draft_U: torch.Tensor
    argmax_U: torch.Tensor
    implementation: str = "auto"


@dataclass(frozen=True)
class AfterHead:
    """What a target does to z = last_hidden @ head^T: z * `scale`, then with a `softcap` s, s * tanh(z / s)."""

    scale: float = 1.0
    softcap: float | None = None

    def applied_(self, logits_uV: torch.Tensor) -> torch.Tensor:
        """In place."""
        if self.scale != 1:
            logits_uV.mul_(self.scale)
        if self.softcap is not None:
            logits_uV.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits_uV


PLAIN = AfterHead()


@torch.no_grad()
def teacher(
    last_hidden_UH: torch.Tensor,
    head_VH: torch.Tensor,
    kept_ids_d: torch.Tensor,
    chunk_rows: int | None = None,
    implementation: str = "auto",
    after: AfterHead = PLAIN,
) -> Teacher:
    """`last_hidden_UH`: post-norm, of the position whose distribution is wanted; `kept_ids_d`: int64, ascending.

    `chunk_rows`: rows in one matmul; None: bounded by memory. `after`: what the target does to its head's matmul.
    """
    rows, (vocab, _), kept = last_hidden_UH.shape[0], head_VH.shape, kept_ids_d.shape[0]
    wide = torch.promote_types(head_VH.dtype, torch.float32)
    logits_Ud = head_VH.new_empty(rows, kept)
    lse_full_U, lse_draft_U = (head_VH.new_empty(rows, dtype=wide) for _ in range(2))
    argmax_U = torch.empty(rows, dtype=torch.int64, device=head_VH.device)
    elements = CUDA_CHUNK_ELEMENTS if head_VH.is_cuda else CPU_CHUNK_ELEMENTS
    chunk = chunk_rows or max(32, elements // vocab // 128 * 128)
    chunk = max(1, min(chunk, rows))
    if chosen(head_VH.device, head_VH.dtype, implementation) == "triton":
        full = head_VH.new_empty(chunk, vocab)
        for start in range(0, rows, chunk):
            at = slice(start, start + chunk)
            hidden_uH = last_hidden_UH[at].to(head_VH.dtype)
            full_uV = after.applied_(torch.mm(hidden_uH, head_VH.t(), out=full[: hidden_uH.shape[0]]))
            teacher_sweep(full_uV, kept_ids_d, logits_Ud[at], (lse_full_U[at], lse_draft_U[at], argmax_U[at]))
        return Teacher(logits_Ud, lse_full_U, lse_draft_U, argmax_U, implementation)
    # one set of buffers for all chunks: fresh pages cost as much as a pass over them
    full, shares = head_VH.new_empty(chunk, vocab), head_VH.new_empty(chunk * vocab, dtype=wide)
    for start in range(0, rows, chunk):
        at = slice(start, start + chunk)
        hidden_uH = last_hidden_UH[at].to(head_VH.dtype)
        full_uV = after.applied_(torch.mm(hidden_uH, head_VH.t(), out=full[: hidden_uH.shape[0]]))
        argmax_U[at] = top(full_uV)
        lse_full_U[at] = _logsumexp(full_uV, argmax_U[at], shares)
        if kept == vocab:
            logits_Ud[at], lse_draft_U[at] = full_uV, lse_full_U[at]
        else:
            torch.index_select(full_uV, 1, kept_ids_d, out=logits_Ud[at])
            lse_draft_U[at] = _logsumexp(logits_Ud[at], top(logits_Ud[at]), shares)
    return Teacher(logits_Ud, lse_full_U, lse_draft_U, argmax_U, implementation)


def _logsumexp(logits_uv: torch.Tensor, top_u: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """x - log(softmax(x)) at the top: softmax is one fused pass that widens as it reads; logsumexp takes five."""
    shares_uv = scratch[: logits_uv.numel()].view(logits_uv.shape)
    torch.softmax(logits_uv, -1, dtype=scratch.dtype, out=shares_uv)
    at_top_u1 = logits_uv.gather(1, top_u[:, None]).to(scratch.dtype)
    return (at_top_u1 - shares_uv.gather(1, top_u[:, None]).log())[:, 0]
