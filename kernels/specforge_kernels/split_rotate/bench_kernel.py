"""In: a GPU. Out: times of split and rotation beside PyTorch's and compiled PyTorch's, bfloat16, if it is right.

Liger's rope rotates queries and keys in place and does not part them from a joined projection: other work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from specforge_kernels.measure import Ceilings, Row, backward, main, other
from specforge_kernels.split_rotate.op import split_rotate
from specforge_kernels.split_rotate.test_split_rotate import main as check

# 7 TTT steps of 8192 rows and more, one kernel: fewer would measure how fast the host launches
CASES = {"Llama-3-8B, Qwen3-8B": (57344, 32, 8, 128), "SmolLM2": (229376, 9, 3, 64)}


def rows(ceilings: Ceilings, only: str) -> Iterator[Row]:
    for name, sizes in CASES.items():
        if only in name:
            yield from of_case(ceilings, name, *sizes)


def of_case(ceilings: Ceilings, name: str, count: int, heads: int, kv_heads: int, width: int) -> Iterator[Row]:
    total = heads + 2 * kv_heads
    qkv = torch.randn(count, total, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    angle = torch.randn(count, 1, width // 2, device="cuda")
    turn = (angle.cos(), angle.sin())

    def ours() -> tuple[torch.Tensor, ...]:
        return split_rotate(qkv, turn, heads, kv_heads, "triton")

    def plain() -> tuple[torch.Tensor, ...]:
        return tuple(x.contiguous() for x in split_rotate(qkv, turn, heads, kv_heads, "torch"))

    case, peers = f"{name}: {count} x {total} x {width}", {"PyTorch": plain, "compiled": torch.compile(plain)}
    others = {label: other(f) for label, f in peers.items()}
    yield ceilings.row(case, "forward", ours, 4 * qkv.numel(), "GB/s", **others)
    others = {label: other(f, (qkv,)) for label, f in peers.items()}
    yield ceilings.row(case, "backward", backward(ours, (qkv,)), 4 * qkv.numel(), "GB/s", **others)


if __name__ == "__main__":
    sys.exit(main(rows, lambda: check("cuda")))
