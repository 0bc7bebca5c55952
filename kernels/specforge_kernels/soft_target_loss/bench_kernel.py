"""In: a GPU. Out: times of the loss and the teacher beside their matmuls, plain PyTorch and Liger, bfloat16, if right.

7 TTT steps of 2048 rows, each teacher row read by 7 of them. Liger's fused linear losses (liger-kernel, where it is
installed): KL is given the target distribution of every row, whose making is not counted; CE has hard labels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from specforge_kernels.measure import Ceilings, Row, main, other
from specforge_kernels.soft_target_loss.cases import SMALL, TOLERANCE
from specforge_kernels.soft_target_loss.launch import loss_sweep, teacher_sweep
from specforge_kernels.soft_target_loss.op import kernel_chunk_rows, soft_target_loss
from specforge_kernels.soft_target_loss.teacher import Teacher, teacher
from specforge_kernels.soft_target_loss.test_soft_target_loss import compare

U, STEPS = 2048, 7


@dataclass(frozen=True)
class Sizes:
    hidden: int
    draft: int
    vocab: int


CASES = {
    "Llama-3-8B": Sizes(4096, 32000, 128256),
    "Qwen3-8B, draft 32000": Sizes(4096, 32000, 151936),
    "Qwen3-8B, draft 151936": Sizes(4096, 151936, 151936),
    "DeepSeek-V3": Sizes(7168, 32000, 129280),
    "SmolLM2": Sizes(576, 16384, 49152),
}


class Given:
    """Random rows, heads and a teacher: logits of standard deviation 2."""

    def __init__(self, sizes: Sizes) -> None:
        def made(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(scale)

        scale = 2 / sizes.hidden**0.5
        self.rows_WH = made(U * STEPS, sizes.hidden).requires_grad_()
        self.head_dH = made(sizes.draft, sizes.hidden, scale=scale).requires_grad_()
        self.last_UH, self.head_VH = made(U, sizes.hidden), made(sizes.vocab, sizes.hidden, scale=scale)
        self.kept_d = torch.randperm(sizes.vocab, device="cuda")[: sizes.draft].sort().values
        self.d2t_d = self.kept_d - torch.arange(sizes.draft, device="cuda")
        self.index_W = torch.arange(U * STEPS, device="cuda") % U
        self.weight_W = torch.rand(U * STEPS, device="cuda") / (U * STEPS)

    def teacher(self) -> Teacher:
        return teacher(self.last_UH, self.head_VH, self.kept_d)

    def grads(self, loss: torch.Tensor) -> None:
        torch.autograd.grad(loss, (self.rows_WH, self.head_dH))


def rows(ceilings: Ceilings, only: str) -> Iterator[Row]:
    for name, sizes in CASES.items():
        if only in name:
            yield from of_case(ceilings, name, sizes)
            torch.cuda.empty_cache()


def of_case(ceilings: Ceilings, name: str, sizes: Sizes) -> Iterator[Row]:
    given = Given(sizes)
    taught, count = given.teacher(), U * STEPS
    detached, head = given.rows_WH.detach(), given.head_dH.detach()

    def ours() -> None:
        given.grads(
            soft_target_loss(given.rows_WH, given.head_dH, taught, given.index_W, given.weight_W, given.d2t_d).loss
        )

    def matmuls() -> None:
        logits = detached @ head.t()
        torch.mm(logits, head)
        torch.mm(logits.t(), detached)

    def plain() -> None:
        logits = (given.rows_WH @ given.head_dH.t()).float()
        taught_wide = taught.logits_Ud.float()[given.index_W]
        p, log_q = torch.softmax(taught_wide, -1), torch.log_softmax(logits, -1)
        with torch.no_grad():
            whole = (taught_wide - taught.lse_full_U[given.index_W, None]).exp()
            torch.minimum(whole, log_q.exp()).sum(-1)
            logits.argmax(-1)
        given.grads(-(given.weight_W[:, None] * p * log_q).sum())

    others = {"matmuls": other(matmuls), "PyTorch": other(plain)}
    others |= {label: other(run) for label, run in liger(given, taught).items()}
    work = 6 * count * sizes.hidden * sizes.draft
    yield ceilings.row(name, "loss and gradients", ours, work, "TFLOP/s", **others)

    chunk = kernel_chunk_rows(count, sizes.draft)
    logits = torch.randn(chunk, sizes.draft, device="cuda", dtype=torch.bfloat16)
    found = tuple(logits.new_empty(chunk, dtype=kind) for kind in (torch.float32, torch.float32, torch.int64))
    index, weights = given.index_W[:chunk], (given.weight_W[:chunk],) * 2
    read = 2 * sizes.draft * (2 * chunk + min(U, chunk))
    swept = (logits, taught, index, found, "ce", weights)
    yield ceilings.row(name, "its sweep", lambda: loss_sweep(*swept), read, "GB/s")

    def plain_teacher() -> None:
        full = (given.last_UH @ given.head_VH.t()).float()
        kept = full[:, given.kept_d]
        full.logsumexp(-1), kept.logsumexp(-1), full.argmax(-1), kept.bfloat16()

    others = {
        "matmuls": other(lambda: given.last_UH @ given.head_VH.t()),
        "PyTorch": other(plain_teacher),
    }
    yield ceilings.row(name, "teacher", given.teacher, 2 * U * sizes.hidden * sizes.vocab, "TFLOP/s", **others)
    full, draft = given.last_UH @ given.head_VH.t(), torch.empty_like(taught.logits_Ud)
    figures = (taught.lse_full_U, taught.lse_draft_U, taught.argmax_U)
    read = 2 * U * (sizes.vocab + sizes.draft)
    yield ceilings.row(name, "its sweep", lambda: teacher_sweep(full, given.kept_d, draft, figures), read, "GB/s")


def liger(given: Given, taught: Teacher) -> dict[str, Callable[[], None]]:
    with suppress(ImportError):
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss
        from liger_kernel.transformers.fused_linear_kl_div import LigerFusedLinearKLDivLoss

        kl, ce = LigerFusedLinearKLDivLoss(reduction="batchmean"), LigerFusedLinearCrossEntropyLoss()
        target_Wd = torch.softmax(taught.logits_Ud.float(), -1).to(torch.bfloat16)[given.index_W]
        labels_W = target_Wd.argmax(-1)
        return {
            "Liger KL": lambda: given.grads(kl(given.rows_WH, given.head_dH, target_Wd)),
            "Liger CE, hard labels": lambda: given.grads(ce(given.head_dH, given.rows_WH, labels_W)),
        }
    return {}


def check() -> None:
    for name, case in SMALL.items():
        error = compare(case, torch.bfloat16, "cuda")
        assert error < TOLERANCE[torch.bfloat16], (name, error)


if __name__ == "__main__":
    sys.exit(main(rows, check))
