"""In: hidden rows, a head and a teacher. Out: the weighted sum of cross-entropies, with gradients, and metrics per row.

Logits exist for one chunk of rows at a time. Gradients of rows and head are formed in the forward pass, from the same
logits, and wait scaled by one for the backward pass.
Legend: W rows, H hidden, d draft vocabulary, U teacher rows, c rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from specforge_kernels.implementation import implementation as chosen
from specforge_kernels.soft_target_loss.lk import LK
from specforge_kernels.soft_target_loss.teacher import Teacher
from specforge_kernels.soft_target_loss.top import top
from specforge_kernels.weight_sum import WeightSum

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.soft_target_loss.launch import loss_sweep

KERNEL_CHUNK_ELEMENTS = 1 << 29
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
    rest = (d2t_d, wanted, None, chosen(rows_WH.device, rows_WH.dtype, teacher.implementation))
    return SoftTargetLoss(*_SoftTargetLoss.apply(rows_WH, head_dH, teacher, teacher_index_W, weight_W, rest))


def lk_loss(
    rows_WH: torch.Tensor,
    head_dH: torch.Tensor,
    teacher: Teacher,
    teacher_index_W: torch.Tensor,
    objective: LK,
    d2t_d: torch.Tensor,
) -> SoftTargetLoss:
    """As `soft_target_loss`, with loss = sum_K of `objective.losses`.

    "lambda" weighs rows by their step's mean acceptance: where gradients are wanted, a first pass over the logits
    finds it, and a second forms them.
    """
    wanted = torch.is_grad_enabled() and (rows_WH.requires_grad or head_dH.requires_grad)
    kind = chosen(rows_WH.device, rows_WH.dtype, teacher.implementation)
    weight_W, rest = objective.weight_W, (d2t_d, wanted, objective, kind)
    return SoftTargetLoss(*_SoftTargetLoss.apply(rows_WH, head_dH, teacher, teacher_index_W, weight_W, rest))


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
        rest: tuple[torch.Tensor, bool, LK | None, str],
    ) -> tuple[torch.Tensor, ...]:
        d2t_d, wanted, objective, kind = rest
        if kind == "triton":
            swept = _KernelSweep(rows_WH, head_dH, teacher, teacher_index_W)
            weight_W = weight_W.to(torch.float32)
            grads = swept.run(weight_W, objective, wanted)
            if grads is not None:
                ctx.save_for_backward(*grads)
            return _result(ctx, swept, weight_W, objective, d2t_d[swept.top_W] + swept.top_W)
        sweep = _Sweep(rows_WH, head_dH, teacher, teacher_index_W)
        weight_W = weight_W.to(sweep.ce_W.dtype)
        grad_rows_WH = torch.empty_like(rows_WH) if wanted else None
        grad_head = WeightSum(torch.promote_types(head_dH.dtype, torch.float32))
        measured = objective is not None and objective.kind == "lambda" and wanted
        if measured:
            for chunk in sweep.chunks():
                sweep.measure(chunk)
        lk_weights = objective.row_weights(sweep.acceptance_W) if objective is not None and wanted else None
        for chunk in sweep.chunks():
            if not measured:
                sweep.measure(chunk)
            if grad_rows_WH is not None:
                at = chunk.at
                if lk_weights is None:
                    grad_cd, weight_c = chunk.ce_gradient(), weight_W[at]
                elif measured:
                    grad_cd = sweep.lambda_gradient(chunk, *lk_weights)
                    weight_c = torch.ones_like(weight_W[at])
                else:
                    grad_cd, weight_c = sweep.alpha_gradient(chunk), lk_weights[1][at].to(weight_W.dtype)
                # the weights go to the narrow side of both matmuls
                torch.mm(grad_cd, head_dH, out=grad_rows_WH[at]).mul_(weight_c[:, None])
                grad_head.add(grad_cd, (rows_WH[at] * weight_c[:, None]).to(rows_WH.dtype))
        if wanted:
            ctx.save_for_backward(grad_rows_WH, _rounded(grad_head, head_dH))
        return _result(ctx, sweep, weight_W, objective, d2t_d[sweep.top_W] + sweep.top_W)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows_WH, head_dH = ctx.saved_tensors
        scale = grads[0]
        return rows_WH * scale.to(rows_WH.dtype), head_dH * scale.to(head_dH.dtype), None, None, None, None


def _result(
    ctx: Any, sweep: _Sweep | _KernelSweep, weight_W: torch.Tensor, objective: LK | None, top_target_W: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    correct_W = top_target_W == sweep.teacher.argmax_U[sweep.index_W]
    ctx.mark_non_differentiable(sweep.ce_W, sweep.acceptance_W, correct_W)
    if objective is None:
        loss = (weight_W * sweep.ce_W).sum()
    else:
        loss = objective.losses(sweep.ce_W, sweep.acceptance_W).sum().to(sweep.ce_W.dtype)
    return loss, sweep.ce_W, sweep.acceptance_W, correct_W


def _rounded(grad_head: WeightSum, head_dH: torch.Tensor) -> torch.Tensor:
    """The head's gradient, summed over chunks in float32 or wider and rounded once."""
    found = grad_head.taken()
    return torch.zeros_like(head_dH) if found is None else found.to(head_dH.dtype)


class _KernelSweep:
    """The same by the Triton kernels: a chunk's gradient is written over its logits, weights and all."""

    def __init__(
        self, rows_WH: torch.Tensor, head_dH: torch.Tensor, teacher: Teacher, teacher_index_W: torch.Tensor
    ) -> None:
        self._rows_WH, self._head_dH, self.teacher, self.index_W = rows_WH, head_dH, teacher, teacher_index_W
        rows = rows_WH.shape[0]
        self._size = kernel_chunk_rows(rows, head_dH.shape[0])
        self.ce_W, self.acceptance_W = (rows_WH.new_empty(rows, dtype=torch.float32) for _ in range(2))
        self.top_W = torch.empty_like(teacher_index_W)

    def run(
        self, weight_W: torch.Tensor, objective: LK | None, wanted: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Figures of all rows, and gradients of rows and head if `wanted`."""
        logits = self._rows_WH.new_empty(self._size, self._head_dH.shape[0])
        kind, weights = "ce" if objective is None else objective.kind, (weight_W, weight_W)
        if not wanted or kind == "lambda":
            for at, logits_cd in self._chunks(logits):
                self._sweep(at, logits_cd, "none", weights)
        if not wanted:
            return None
        if objective is not None:
            found = objective.row_weights(self.acceptance_W)
            weights = (found[0].to(torch.float32), found[1].to(torch.float32))
        grad_rows_WH, grad_head = torch.empty_like(self._rows_WH), WeightSum(torch.float32)
        logits_cd = logits
        for at, logits_cd in self._chunks(logits):
            self._sweep(at, logits_cd, kind, weights)
            torch.mm(logits_cd, self._head_dH, out=grad_rows_WH[at])
            if self._size == len(self._rows_WH):
                return grad_rows_WH, torch.mm(logits_cd.t(), self._rows_WH)
            grad_head.add(logits_cd, self._rows_WH[at])
        del logits, logits_cd  # their room is what the rounded sum takes
        return grad_rows_WH, _rounded(grad_head, self._head_dH)

    def _chunks(self, logits: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        for start in range(0, len(self._rows_WH), self._size):
            rows_cH = self._rows_WH[start : start + self._size]
            logits_cd = torch.mm(rows_cH, self._head_dH.t(), out=logits[: len(rows_cH)])
            yield slice(start, start + self._size), logits_cd

    def _sweep(self, at: slice, logits_cd: torch.Tensor, kind: str, weights: tuple[torch.Tensor, torch.Tensor]) -> None:
        found = (self.ce_W[at], self.acceptance_W[at], self.top_W[at])
        loss_sweep(logits_cd, self.teacher, self.index_W[at], found, kind, (weights[0][at], weights[1][at]))


def kernel_chunk_rows(rows: int, vocab: int) -> int:
    """A quarter of the rows, in whole multiples of 4096 within the memory bound; at most `rows`.

    Fewer, larger chunks add to the head's gradient less often, smaller ones leave room: at a quarter both are small.
    """
    most = max(CUDA_CHUNK_ROWS, KERNEL_CHUNK_ELEMENTS // vocab // CUDA_CHUNK_ROWS * CUDA_CHUNK_ROWS)
    quarter = -(-rows // 4 // CUDA_CHUNK_ROWS) * CUDA_CHUNK_ROWS
    return max(1, min(rows, most, quarter))


class _Chunk(NamedTuple):
    """Views of the sweep's buffers for the rows `at`: what is formed of them may be written over."""

    at: slice
    index_c: torch.Tensor
    logits_cd: torch.Tensor
    q_cd: torch.Tensor
    p_cd: torch.Tensor
    scratch_cd: torch.Tensor

    def ce_gradient(self) -> torch.Tensor:
        """d ce / d logits, into the logits' buffer, which is not read any more."""
        return torch.sub(self.q_cd, self.p_cd, out=self.logits_cd)


class _Sweep:
    """Passes over the logits, chunk by chunk. One set of buffers: fresh pages cost as much as a pass over them."""

    def __init__(
        self, rows_WH: torch.Tensor, head_dH: torch.Tensor, teacher: Teacher, teacher_index_W: torch.Tensor
    ) -> None:
        self._rows_WH, self._head_dH, self.teacher, self.index_W = rows_WH, head_dH, teacher, teacher_index_W
        rows, wide = rows_WH.shape[0], torch.promote_types(rows_WH.dtype, torch.float32)
        self._size = chunk_rows(rows, head_dH.shape[0], rows_WH.is_cuda)
        self.ce_W, self.acceptance_W = (rows_WH.new_empty(rows, dtype=wide) for _ in range(2))
        self.top_W = torch.empty_like(teacher_index_W)
        self._ratio_U = (teacher.lse_draft_U - teacher.lse_full_U).exp()
        dtypes = (rows_WH.dtype, teacher.logits_Ud.dtype, wide, wide, wide)
        self._buffers = [rows_WH.new_empty(self._size, head_dH.shape[0], dtype=dtype) for dtype in dtypes]

    def chunks(self) -> Iterator[_Chunk]:
        """Logits, and both softmaxes, of one chunk of rows after the other."""
        for start in range(0, self._rows_WH.shape[0], self._size):
            at = slice(start, start + self._size)
            index_c = self.index_W[at]
            logits, taught, q, p, scratch = (x[: index_c.shape[0]] for x in self._buffers)
            logits_cd = torch.mm(self._rows_WH[at], self._head_dH.t(), out=logits)
            taught_cd = torch.index_select(self.teacher.logits_Ud, 0, index_c, out=taught)
            q_cd = torch.softmax(logits_cd, -1, dtype=q.dtype, out=q)
            p_cd = torch.softmax(taught_cd, -1, dtype=p.dtype, out=p)
            yield _Chunk(at, index_c, logits_cd, q_cd, p_cd, scratch)

    def measure(self, chunk: _Chunk) -> None:
        """Cross-entropy, acceptance and top id of the chunk's rows."""
        at, index_c, logits_cd, q_cd, p_cd, scratch_cd = chunk
        top_c1 = top(logits_cd)[:, None]
        self.top_W[at] = top_c1[:, 0]
        lse_c = (logits_cd.gather(1, top_c1).to(q_cd.dtype) - q_cd.gather(1, top_c1).log())[:, 0]
        torch.mul(p_cd, logits_cd, out=scratch_cd)
        self.ce_W[at] = lse_c - scratch_cd.sum(-1)
        torch.mul(p_cd, self._ratio_U[index_c, None], out=scratch_cd)
        self.acceptance_W[at] = torch.minimum(scratch_cd, q_cd, out=scratch_cd).sum(-1)

    def alpha_gradient(self, chunk: _Chunk) -> torch.Tensor:
        """d log acceptance / d logits, 0 where acceptance is exactly 0."""
        acceptance_c = self.acceptance_W[chunk.at]
        # no element is above acceptance: divide two tiny numbers, never multiply by 1 / tiny
        acceptance_c = acceptance_c.masked_fill(acceptance_c == 0, torch.inf)
        return chunk.logits_cd.copy_(self._acceptance_gradient(chunk).div_(acceptance_c[:, None]))

    def lambda_gradient(self, chunk: _Chunk, ce_weight_W: torch.Tensor, weight_W: torch.Tensor) -> torch.Tensor:
        """ce_weight · d ce / d logits + weight · d acceptance / d logits."""
        ce_weight_c1, weight_c1 = (w[chunk.at, None].to(chunk.q_cd.dtype) for w in (ce_weight_W, weight_W))
        grad_cd = self._acceptance_gradient(chunk).mul_(weight_c1)
        grad_cd.addcmul_(torch.sub(chunk.q_cd, chunk.p_cd, out=chunk.p_cd), ce_weight_c1)
        return chunk.logits_cd.copy_(grad_cd)

    def _acceptance_gradient(self, chunk: _Chunk) -> torch.Tensor:
        """q_v · (s_v - sum_u q_u s_u), s = 1 where q < p_full and 1/2 on ties."""
        below_cd = torch.mul(chunk.p_cd, self._ratio_U[chunk.index_c, None], out=chunk.scratch_cd)
        below_cd.sub_(chunk.q_cd).sign_().add_(1).mul_(0.5).mul_(chunk.q_cd)
        return below_cd.addcmul_(chunk.q_cd, below_cd.sum(-1, keepdim=True), value=-1)
