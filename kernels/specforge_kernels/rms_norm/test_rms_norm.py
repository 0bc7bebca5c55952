"""In: random rows. Out: RMSNorm and SwiGLU kernels equal float64 formulas, value and gradients.

Where there is no GPU they run in a process of their own under Triton's interpreter, in float32.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from specforge_kernels.rms_norm import norm_gradients, normed, rms_norm
from specforge_kernels.swiglu import gated_down

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


def plain_norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def plain_gated(gate, up, down, added):
    return added + (torch.nn.functional.silu(gate) * up) @ down.t()


def norm_kernel(x, weight):
    return rms_norm(x, weight, 1e-5)


def gated_kernel(gate, up, down, added):
    return gated_down(gate, up, down, added)


def compare(found, expected, shapes, dtype, device) -> float:
    leaves = [torch.randn(s, device=device, dtype=torch.float32).to(dtype).requires_grad_() for s in shapes]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    a, b = found(*leaves), expected(*exact)
    grad = torch.randn(a.shape, device=device).to(dtype)
    pairs = zip(
        [a, *torch.autograd.grad(a, leaves, grad)], [b, *torch.autograd.grad(b, exact, grad.double())], strict=True
    )
    return max(((x.double() - y).norm() / y.norm()).item() for x, y in pairs)


def main(device: str) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32,) if device == "cpu" else TOLERANCE:
        for rows, width in ((1, 5), (7, 64), (600, 48)):
            error = compare(norm_kernel, plain_norm, [(rows, width), (width,)], dtype, device)
            assert error < TOLERANCE[dtype], ("norm", rows, width, error)
            shapes = [(rows, width), (rows, width), (9, width), (rows, 9)]
            error = compare(gated_kernel, plain_gated, shapes, dtype, device)
            assert error < TOLERANCE[dtype], ("swiglu", rows, width, error)
    x, weight, grad = (torch.randn(s, device=device) for s in ((7, 64), (64,), (7, 64)))
    leaves = [t.requires_grad_() for t in (x, weight)]
    out, scale = normed(x.detach(), weight.detach(), 1e-5)
    kept = rms_norm(*leaves, 1e-5)
    found, wanted = norm_gradients(grad, x.detach(), weight.detach(), scale), torch.autograd.grad(kept, leaves, grad)
    assert torch.equal(out, kept)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), "the same bits, in parts"
    print("equal")


@pytest.mark.cpu
def test_kernels_under_the_interpreter():
    run = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gpu
def test_kernels_on_the_gpu():
    main("cuda")


if __name__ == "__main__":
    from specforge_kernels.testing import mend_interpreter

    mend_interpreter()
    main("cpu")
