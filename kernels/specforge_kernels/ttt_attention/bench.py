"""In: nothing. Out: times of the op's forward and backward against its matmuls alone, if the op is right.

`python bench.py`: on the GPU in bfloat16 where there is one, else on the CPU in float32.
"""

from __future__ import annotations

import sys
import time

import torch

from specforge_kernels.ttt_attention.cases import BENCH, SMALL, TOLERANCE, Case, inputs
from specforge_kernels.ttt_attention.op import ttt_attention
from specforge_kernels.ttt_attention.test_ttt_attention import compare


def median_ms(run, device: str, times: int = 8) -> float:
    found = []
    for _ in range(times + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3)
    return sorted(found[2:])[times // 2]


def bench(case: Case, device: str, dtype: torch.dtype) -> tuple[float, float]:
    """(op, its matmuls alone) in ms: scores, output, and five in the backward pass, over the layout's tiles."""
    given = inputs(case, dtype, device)
    out = ttt_attention(*given.tensors, given.layout)
    grad, matmuls = torch.randn_like(out), []
    for tile in given.layout.tiles:
        batch = given.layout.groups[tile.group].documents * case.kv_heads
        rows = tile.queries * case.heads // case.kv_heads
        q, k = (torch.randn(batch, n, case.key_width, device=device, dtype=dtype) for n in (rows, tile.keys))
        do, v = (torch.randn(batch, n, case.value_width, device=device, dtype=dtype) for n in (rows, tile.keys))
        matmuls.append((q, k, do, v, torch.randn(batch, rows, tile.keys, device=device, dtype=dtype)))

    def run() -> None:
        ttt_attention(*given.tensors, given.layout).backward(grad)

    def floor() -> None:
        for q, k, do, v, p in matmuls:
            for left, right in ((q, k.mT), (p, v), (q, k.mT), (p.mT, do), (do, v.mT), (p, k), (p.mT, q)):
                torch.bmm(left, right)

    return median_ms(run, device), median_ms(floor, device)


def main() -> int:
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    for name, case in SMALL.items():
        error = compare(case, dtype, device)
        if not error < TOLERANCE[dtype]:
            print(f"wrong: {name}: relative error {error:.2e} on {device}; no times", file=sys.stderr)
            return 1
    for name, case in BENCH.items():
        op_ms, floor_ms = bench(case, device, dtype)
        print(f"{name}: {op_ms:.2f} ms, matmuls {floor_ms:.2f} ms, ratio {op_ms / floor_ms:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
