"""In: hidden rows, a head and a teacher. Out: the weighted sum of cross-entropies, with gradients, and metrics per row.

Logits exist for one chunk of rows at a time. Gradients of rows and head are formed in the forward pass, from the same
logits, and wait scaled by one for the backward pass.
Legend: W rows, H hidden, d draft vocabulary, U teacher rows, c rows of a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specforge_kernels.soft_target_loss.teacher import Teacher
from specforge_kernels.soft_target_loss.top import top

CUDA_CHUNK_ROWS, CUDA_CHUNK_ELEMENTS = 4096, 1 << 27
CPU_CHUNK_ROWS, CPU_CHUNK_ELEMENTS = 64, 1 << 21


class SoftTargetLoss(NamedTuple):
    """`loss`: scalar, the only differentiable one. Per row, detached: cross-entropy, acceptance in [0, 1], bool."""

    loss: torch.Tensor
    ce_W: torch.Tensor
    acceptance_W: torch.Tensor
    correct_W: torch.Tensor


def soft_target_loss(
    rows_WH: torch.Tensor,
    head_dH: torch.Tensor,
    teacher: Teacher,
    teacher_index_W: torch.Tensor,
    weight_W: torch.Tensor,
    d2t_d: torch.Tensor,
) -> SoftTargetLoss:
    """loss = sum_W weight * ce. Formulas: reference.py; float32 (or wider) from the logits on.

    `rows_WH`: after the final norm. `teacher_index_W`: int64, the teacher row of each row. `weight_W`: 0 takes a row
    out of loss and gradient, its metrics stay. `d2t_d`: offsets, target id = draft id + d2t[draft id]. The top draft
    token is the lowest id on ties. Without gradients to form (inference, `torch.no_grad`) their matmuls are left out.
    """
    wanted = torch.is_grad_enabled() and (rows_WH.requires_grad or head_dH.requires_grad)
    return SoftTargetLoss(*_SoftTargetLoss.apply(rows_WH, head_dH, teacher, teacher_index_W, weight_W, (d2t_d, wanted)))


def chunk_rows(rows: int, vocab: int, cuda: bool) -> int:
    """Rows of one chunk, within the memory bound: on a CPU equal chunks, as few as can be."""
    least, elements = (CUDA_CHUNK_ROWS, CUDA_CHUNK_ELEMENTS) if cuda else (CPU_CHUNK_ROWS, CPU_CHUNK_ELEMENTS)
    most = max(least, elements // vocab)
    if cuda:
        return max(1, min(rows, most - most % least))  # whole chunks keep their shape from one step to the next
    chunks = max(1, -(-rows // most))
    return max(1, -(-rows // chunks))


class _SoftTargetLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows_WH: torch.Tensor,
        head_dH: torch.Tensor,
        teacher: Teacher,
        teacher_index_W: torch.Tensor,
        weight_W: torch.Tensor,
        rest: tuple[torch.Tensor, bool],
    ) -> tuple[torch.Tensor, ...]:
        d2t_d, wanted = rest
        rows, wide = rows_WH.shape[0], torch.promote_types(rows_WH.dtype, torch.float32)
        chunk = chunk_rows(rows, head_dH.shape[0], rows_WH.is_cuda)
        ce_W, acceptance_W = (rows_WH.new_empty(rows, dtype=wide) for _ in range(2))
        top_W = torch.empty_like(teacher_index_W)
        weight_W = weight_W.to(wide)
        ratio_U = (teacher.lse_draft_U - teacher.lse_full_U).exp()
        grad_rows_WH = torch.empty_like(rows_WH) if wanted else None
        grad_head = _HeadGradient(head_dH)
        # one set of buffers for all chunks: fresh pages cost as much as a pass over them
        logits, taught = (
            rows_WH.new_empty(chunk, head_dH.shape[0], dtype=x.dtype) for x in (rows_WH, teacher.logits_Ud)
        )
        q, p, scratch = (rows_WH.new_empty(chunk, head_dH.shape[0], dtype=wide) for _ in range(3))
        for start in range(0, rows, chunk):
            at = slice(start, start + chunk)
            index_c = teacher_index_W[at]
            size = index_c.shape[0]
            logits_cd = torch.mm(rows_WH[at], head_dH.t(), out=logits[:size])
            taught_cd = torch.index_select(teacher.logits_Ud, 0, index_c, out=taught[:size])
            q_cd = torch.softmax(logits_cd, -1, dtype=wide, out=q[:size])
            p_cd = torch.softmax(taught_cd, -1, dtype=wide, out=p[:size])
            top_c1 = top(logits_cd)[:, None]
            top_W[at] = top_c1[:, 0]
            lse_c = (logits_cd.gather(1, top_c1).to(wide) - q_cd.gather(1, top_c1).log())[:, 0]
            scratch_cd = torch.mul(p_cd, logits_cd, out=scratch[:size])
            ce_W[at] = lse_c - scratch_cd.sum(-1)
            torch.mul(p_cd, ratio_U[index_c, None], out=scratch_cd)
            acceptance_W[at] = torch.minimum(scratch_cd, q_cd, out=scratch_cd).sum(-1)
            if grad_rows_WH is not None:
                # into the logits' buffer, which is not read any more; the weights go to the narrow side of both matmuls
                grad_cd = torch.sub(q_cd, p_cd, out=logits_cd)
                torch.mm(grad_cd, head_dH, out=grad_rows_WH[at]).mul_(weight_W[at, None])
                grad_head.add(grad_cd, (rows_WH[at] * weight_W[at, None]).to(rows_WH.dtype))
        correct_W = top_W + d2t_d[top_W] == teacher.argmax_U[teacher_index_W]
        if wanted:
            ctx.save_for_backward(grad_rows_WH, grad_head.total())
        ctx.mark_non_differentiable(ce_W, acceptance_W, correct_W)
        return (weight_W * ce_W).sum(), ce_W, acceptance_W, correct_W

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows_WH, head_dH = ctx.saved_tensors
        scale = grads[0]
        return rows_WH * scale.to(rows_WH.dtype), head_dH * scale.to(head_dH.dtype), None, None, None, None


class _HeadGradient:
    """The head's gradient, summed over chunks in float32 or wider and rounded once."""

    def __init__(self, head_dH: torch.Tensor) -> None:
        self._like = head_dH
        self._sum: torch.Tensor | None = None

    def add(self, grad_cd: torch.Tensor, rows_cH: torch.Tensor) -> None:
        wide = torch.promote_types(grad_cd.dtype, torch.float32)
        if grad_cd.dtype == wide and self._sum is not None:
            self._sum.addmm_(grad_cd.t(), rows_cH)
            return
        if grad_cd.dtype != wide and grad_cd.is_cuda:
            part = torch.mm(grad_cd.t(), rows_cH, out_dtype=wide)
        else:
            part = torch.mm(grad_cd.t(), rows_cH).to(wide)
        self._sum = part if self._sum is None else self._sum.add_(part)

    def total(self) -> torch.Tensor:
        return torch.zeros_like(self._like) if self._sum is None else self._sum.to(self._like.dtype)
