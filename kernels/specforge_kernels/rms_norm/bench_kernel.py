"""In: a GPU. Out: times of RMSNorm beside PyTorch's, compiled PyTorch's and Liger's, bfloat16, if it is right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch

from specforge_kernels.measure import Ceilings, Row, backward, main, other
from specforge_kernels.rms_norm.op import rms_norm
from specforge_kernels.rms_norm.test_rms_norm import main as check

EPS = 1e-5
# 7 TTT steps of 8192 rows, one kernel: fewer would measure how fast the host launches
CASES = {"Llama-3-8B, Qwen3-8B": (57344, 4096), "DeepSeek-V3": (57344, 7168), "SmolLM2": (458752, 576)}


def rows(ceilings: Ceilings, only: str) -> Iterator[Row]:
    for name, sizes in CASES.items():
        if only in name:
            yield from of_case(ceilings, name, *sizes)


def of_case(ceilings: Ceilings, name: str, count: int, width: int) -> Iterator[Row]:
    x = torch.randn(count, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    leaves, case = (x, weight), f"{name}: {count} x {width}"
    runs = {label: lambda f=f: f(x, weight) for label, f in peers(width).items()}

    def ours() -> torch.Tensor:
        return rms_norm(x, weight, EPS)

    others = {label: other(f) for label, f in runs.items()}
    yield ceilings.row(case, "forward", ours, 2 * 2 * x.numel(), "GB/s", **others)
    others = {label: other(f, leaves) for label, f in runs.items()}
    yield ceilings.row(case, "backward", backward(ours, leaves), 2 * 3 * x.numel(), "GB/s", **others)


def peers(width: int) -> dict[str, Callable]:
    def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (width,), weight, EPS)

    found = {"PyTorch": plain, "compiled": torch.compile(plain, dynamic=False)}
    with suppress(ImportError):
        from liger_kernel.ops import LigerRMSNormFunction

        # not in place: here, as in the step, the gradient that comes in is still read
        found["Liger"] = lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)
    return found


if __name__ == "__main__":
    sys.exit(main(rows, lambda: check("cuda")))
