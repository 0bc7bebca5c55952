"""In: nothing. Out: times of the op (forward and backward) and of the teacher against their matmuls alone, if right.

`python bench.py`: on the GPU in bfloat16 where there is one, else on the CPU in float32.
"""

from __future__ import annotations

import sys
import time

import torch

from specforge_kernels.soft_target_loss.cases import BENCH, SMALL, TOLERANCE, Case, inputs
from specforge_kernels.soft_target_loss.op import soft_target_loss
from specforge_kernels.soft_target_loss.teacher import teacher
from specforge_kernels.soft_target_loss.test_soft_target_loss import compare

CPU_MEMORY_BYTES = 4 << 30


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


def bench(case: Case, device: str, dtype: torch.dtype) -> str:
    given = inputs(case, dtype, device)
    rows, head = (x.detach() for x in given.leaves)
    grad = torch.empty(case.rows, case.draft_vocab, device=device, dtype=dtype)

    def floor() -> None:
        torch.mm(rows, head.t(), out=grad)
        torch.mm(grad, head)
        torch.mm(grad.t(), rows)

    loss_ms = median_ms(lambda: soft_target_loss(*given.arguments).loss.backward(), device)
    floor_ms = median_ms(floor, device)
    teacher_ms = median_ms(lambda: teacher(given.last_UH, given.head_VH, given.kept_d), device)
    head_ms = median_ms(lambda: given.last_UH @ given.head_VH.t(), device)
    return (
        f"loss {loss_ms:.2f} ms, matmuls {floor_ms:.2f} ms, ratio {loss_ms / floor_ms:.2f}; "
        f"teacher {teacher_ms:.2f} ms, matmul {head_ms:.2f} ms, ratio {teacher_ms / head_ms:.2f}"
    )


def main() -> int:
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    for name, case in SMALL.items():
        error = compare(case, dtype, device)
        if not error < TOLERANCE[dtype]:
            print(f"wrong: {name}: relative error {error:.2e} on {device}; no times", file=sys.stderr)
            return 1
    for name, case in BENCH.items():
        if device == "cpu" and case.rows * case.draft_vocab * 4 * 2 > CPU_MEMORY_BYTES // 2:
            print(f"{name}: left out on a CPU")
            continue
        print(f"{name}: {bench(case, device, dtype)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
