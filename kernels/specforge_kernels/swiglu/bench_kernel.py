"""In: a GPU. Out: times of silu(gate) * up beside PyTorch's, compiled PyTorch's and Liger's, bfloat16, if it is right.

Without the matmul that follows. Ours makes the product again in the backward pass, the others keep it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch

from specforge_kernels.measure import Ceilings, Row, main, other
from specforge_kernels.rms_norm.test_rms_norm import main as check
from specforge_kernels.swiglu.op import gradients, product

CASES = {
    "Llama-3-8B": (8192, 14336),
    "Qwen3-8B": (8192, 12288),
    "DeepSeek-V3": (8192, 18432),
    "SmolLM2": (65536, 1536),
}


def rows(ceilings: Ceilings, only: str) -> Iterator[Row]:
    for name, sizes in CASES.items():
        if only in name:
            yield from of_case(ceilings, name, *sizes)


def of_case(ceilings: Ceilings, name: str, count: int, width: int) -> Iterator[Row]:
    gate, up = (torch.randn(count, width, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    grad, bare = torch.randn_like(gate), (gate.detach(), up.detach())
    case = f"{name}: {count} x {width}"
    forward = {label: lambda f=f: f(gate, up) for label, f in peers().items()}
    others = {label: other(f) for label, f in forward.items()}
    yield ceilings.row(case, "forward", lambda: product(*bare), 2 * 3 * gate.numel(), "GB/s", **others)
    others = {label: other(f, (gate, up)) for label, f in forward.items()}
    yield ceilings.row(case, "backward", lambda: gradients(*bare, grad), 2 * 6 * gate.numel(), "GB/s", **others)


def peers() -> dict[str, Callable]:
    def plain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gate) * up

    found = {"PyTorch": plain, "compiled": torch.compile(plain, dynamic=False)}
    with suppress(ImportError):
        from liger_kernel.ops import LigerSiLUMulFunction

        found["Liger"] = LigerSiLUMulFunction.apply
    return found


if __name__ == "__main__":
    sys.exit(main(rows, lambda: check("cuda")))
