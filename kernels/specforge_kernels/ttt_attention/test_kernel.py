"""In: small cases. Out: the Triton kernels' value, LSE and gradients equal the float64 reference's.

Where there is no GPU the cases run in a process of their own under Triton's interpreter, in float32: its dot of
bfloat16 reads bits as integers.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from specforge_kernels.testing import mend_interpreter, poisoned
from specforge_kernels.ttt_attention.blocks import blocks
from specforge_kernels.ttt_attention.cases import SMALL, TOLERANCE, Case, inputs
from specforge_kernels.ttt_attention.layout import key_layout, query_layout
from specforge_kernels.ttt_attention.op import ttt_attention_part
from specforge_kernels.ttt_attention.reference import reference

WIDTHS = {  # those of real models, which have tiles of their own
    "heads of 64": Case((150, 3, 70), 0.8, 2, key_width=64, value_width=64),
    "heads of 96": Case((150, 3, 70), 0.8, 2, key_width=96, value_width=96),
    "heads of 128": Case((150, 3, 70), 0.8, 2, key_width=128, value_width=128),
    "heads of 192 and 128": Case((150, 3, 70), 0.8, 2, heads=2, key_width=192, value_width=128),
}
CASES = {name: case for name, case in SMALL.items() if sum(case.lengths) < 100} | {
    "two blocks": Case((70, 3, 290), 0.8, 2),
    **WIDTHS,
    "every key block whole": Case((400,), 1.0, 1, heads=2, kv_heads=1),
    "a window over blocks": Case((150, 40), 1.0, 2, heads=2, kv_heads=2, window=33),
}


def compare_kernel(case: Case, dtype: torch.dtype, device: str) -> float:
    """Largest relative error of out, lse and every gradient, both outputs asked for theirs."""
    from specforge_kernels.ttt_attention.launch import TritonAttention

    given = inputs(case, dtype, device)
    rows = given.rows
    document, position = (x.cpu().numpy() for x in (rows.document_Q, rows.position_Q))
    document_C, position_C = (x.cpu().numpy() for x in (rows.document_C, rows.position_C))
    tasks = blocks(document, position, np.bincount(document_C), window=case.window).to(device)
    order = torch.from_numpy(np.lexsort((position_C, document_C))).to(device)
    exact = [x.detach().double().requires_grad_() for x in given.leaves]
    k = case.suffix
    query, key, value, keys, values = given.tensors
    own = (torch.stack(keys), torch.stack(values)) if k else (None, None)
    out, lse = TritonAttention.apply(query, key[order], value[order], *own, tasks)
    expected = reference(*exact[:3], exact[3 : 3 + k], exact[3 + k :], rows)
    layout = query_layout(key_layout(document_C, position_C), document, position, case.window).to(device)
    expected_lse = ttt_attention_part(*exact[:3], exact[3 : 3 + k], exact[3 + k :], layout)[1]
    grad, grad_lse = (torch.randn(x.shape, dtype=torch.float64, device=device) for x in (out, lse))
    grad = grad.to(dtype)
    found = torch.autograd.grad((out, lse), given.leaves, (grad, grad_lse.float()))
    wanted = torch.autograd.grad((expected, expected_lse), exact, (grad.double(), grad_lse))
    assert torch.isfinite(lse).all()
    pairs = zip([out, lse, *found], [expected, expected_lse, *wanted], strict=True)
    return max(((a.double() - b).norm() / b.norm().clamp(min=0.1)).item() for a, b in pairs)


def check(name: str, dtype: torch.dtype, device: str) -> None:
    with poisoned():
        error = compare_kernel(CASES[name], dtype, device)
    print(f"{name} {dtype}: {error:.2e}", flush=True)
    assert error < TOLERANCE[dtype], (name, dtype, error)


def main(device: str) -> None:
    for name in CASES:
        for dtype in (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16):
            check(name, dtype, device)


@pytest.mark.cpu
def test_kernel_under_the_interpreter():
    run = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernel_on_the_gpu(name, dtype):
    check(name, dtype, "cuda")


if __name__ == "__main__":
    mend_interpreter()
    main("cpu")
