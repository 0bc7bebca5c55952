"""In: small cases. Out: the Triton sweeps' loss, figures and gradients equal the float64 reference's.

Where there is no GPU they run in a process of their own under Triton's interpreter, in float32.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from specforge_kernels.soft_target_loss import AfterHead, Teacher, lk_loss, op, soft_target_loss, teacher
from specforge_kernels.soft_target_loss.cases import SMALL, TOLERANCE, Case, inputs, lk_inputs
from specforge_kernels.soft_target_loss.reference import reference
from specforge_kernels.testing import mend_interpreter, poisoned

NAMES = ("one row", "odd sizes", "whole vocabulary", "all rows of weight 0", "one id")
# LK's gradient jumps where p = q: which side a row is on must not hang on the rounding of its logits to 16 bits
UNROUNDED = {"the head is the identity": Case(64, 131, 131, 333, 11, identity=True)}
ON_GPU = {**SMALL, "vocabulary above 131072": Case(64, 16, 140_001, 151_937, 20)}


def relative(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)).item()


def compare(case: Case, dtype: torch.dtype, device: str, lk: str | None) -> float:
    given = inputs(case, dtype, device) if lk is None else lk_inputs(case, lk, dtype, device)
    rows, head, taught, *rest = given.arguments
    logits = taught.logits_Ud.double()
    exact = [rows.detach().double().requires_grad_(), head.detach().double().requires_grad_()]
    wide = Teacher(logits, taught.lse_full_U.double(), torch.logsumexp(logits, -1), taught.argmax_U)
    run = soft_target_loss if lk is None else lk_loss
    arguments = (rows, head, replace(taught, implementation="triton"), *rest)
    found, expected = run(*arguments), reference(*exact, wide, *rest)
    grads = torch.autograd.grad(found.loss * 3, given.leaves)
    wanted = torch.autograd.grad(expected.loss * 3, exact)
    if dtype != torch.bfloat16:
        assert torch.equal(found.correct_W, expected.correct_W)
    with torch.no_grad():
        assert torch.equal(run(*arguments).ce_W, found.ce_W)
    return max(relative(a, b) for a, b in zip([*found[:3], *grads], [*expected[:3], *wanted], strict=True))


def compare_teacher(case: Case, dtype: torch.dtype, device: str, after: AfterHead) -> float:
    given = inputs(case, dtype, device)
    arguments = (given.last_UH, given.head_VH, given.kept_d)
    a, b = (teacher(*arguments, chunk_rows=3, implementation=kind, after=after) for kind in ("triton", "torch"))
    assert torch.equal(a.logits_Ud, b.logits_Ud)
    assert torch.equal(a.argmax_U, b.argmax_U)
    return max(relative(a.lse_full_U, b.lse_full_U), relative(a.lse_draft_U, b.lse_draft_U))


def check_ties(device: str) -> None:
    ones = torch.ones(500, 16, device=device)
    taught = teacher(ones[:2], ones, torch.arange(40, device=device), implementation="triton")
    assert taught.argmax_U.tolist() == [0, 0]


def check_zero_acceptance(device: str) -> None:
    zero = torch.zeros(1, device=device)
    taught = Teacher(torch.tensor([[0.0, -1e4, -1e4]], device=device), zero, zero, zero.long(), "triton")
    rows = torch.ones(1, 1, requires_grad=True, device=device)
    head = torch.tensor([[-1e4], [1e4], [0.0]], device=device)
    weight, d2t = torch.ones(1, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    found = soft_target_loss(rows, head, taught, zero.long(), weight, d2t)
    found.loss.backward()
    assert found.acceptance_W.item() == 0
    assert torch.isfinite(rows.grad).all()


def check_no_rows(device: str) -> None:
    head = torch.ones(4, 3, device=device, requires_grad=True)
    taught = teacher(
        torch.ones(2, 3, device=device), head.detach(), torch.arange(4, device=device), implementation="triton"
    )
    none, d2t = torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    rows = torch.zeros(0, 3, device=device, requires_grad=True)
    found = soft_target_loss(rows, head, taught, none, torch.zeros(0, device=device), d2t)
    found.loss.backward()
    assert found.loss.item() == 0
    assert not head.grad.any()


def main(device: str) -> None:
    cases = UNROUNDED | ({name: SMALL[name] for name in NAMES} if device == "cpu" else ON_GPU)
    for name, case in cases.items():
        for dtype in (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16):
            error = max(compare_teacher(case, dtype, device, after) for after in (AfterHead(), AfterHead(3.0, 2.0)))
            assert error < 2e-5, ("teacher", name, dtype, error)
            for lk in (None, "alpha", "lambda") if dtype != torch.bfloat16 or case.identity else (None,):
                with poisoned():
                    error = compare(case, dtype, device, lk)
                print(f"{name} {dtype} {lk}: {error:.2e}", flush=True)
                assert error < TOLERANCE[dtype], (name, dtype, lk, error)
    check_ties(device)
    check_zero_acceptance(device)
    check_no_rows(device)
    op.kernel_chunk_rows = lambda rows, vocab: 7
    for lk in (None, "lambda"):
        error = compare(SMALL["odd sizes"], torch.float32, device, lk)
        assert error < TOLERANCE[torch.float32], ("chunks", lk, error)


@pytest.mark.cpu
def test_kernel_under_the_interpreter():
    run = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gpu
def test_kernel_on_the_gpu():
    main("cuda")


if __name__ == "__main__":
    mend_interpreter()
    main("cpu")
