"""In: random projections and angles. Out: the kernel equals the formula in float64, value and gradients.

Where there is no GPU it runs in a process of its own under Triton's interpreter, in float32.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from specforge_kernels.split_rotate import split_rotate
from specforge_kernels.split_rotate.reference import reference

SHAPES = [(1, 1, 1, 2), (5, 3, 1, 6), (7, 9, 3, 64), (33, 32, 8, 96)]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def main(device: str, implementation: str = "triton") -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32,) if device == "cpu" else TOLERANCE:
        for rows, heads, kv_heads, width in SHAPES:
            qkv = torch.randn(rows, heads + 2 * kv_heads, width, device=device).to(dtype).requires_grad_()
            angles = torch.rand(rows, 1, width // 2, device=device) * 1000
            turn = (angles.cos() * 1.3, angles.sin() * 1.3)
            exact = qkv.detach().double().requires_grad_()
            found = split_rotate(qkv, turn, heads, kv_heads, implementation)
            wanted = reference(exact, *(t.double() for t in turn), heads, kv_heads)
            grads = [torch.randn(x.shape, device=device).to(dtype) for x in found]
            (gradient,) = torch.autograd.grad(found, (qkv,), grads)
            (expected,) = torch.autograd.grad(wanted, (exact,), [g.double() for g in grads])
            for a, b in zip([*found, gradient], [*wanted, expected], strict=True):
                assert a.is_contiguous() or implementation == "torch"
                error = ((a.double() - b).norm() / b.norm()).item()
                assert error < TOLERANCE[dtype], (rows, heads, kv_heads, width, dtype, error)
    print("equal")


@pytest.mark.cpu
def test_kernel_under_the_interpreter():
    run = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.cpu
def test_pytorch_path():
    main("cpu", "torch")


@pytest.mark.gpu
def test_kernel_on_the_gpu():
    main("cuda")


if __name__ == "__main__":
    from specforge_kernels.testing import mend_interpreter

    mend_interpreter()
    main("cpu")
