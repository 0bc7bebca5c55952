"""In: callables on a GPU. Out: their times, the GPU's ceilings, and rows of a kernel's table: for bench_kernel.py.

python bench_kernel.py [--only TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

SIZE, COPIED = 8192, 1 << 32


@dataclass
class Row:
    """`ms` is a median, `low` and `high` its quartiles. `rate` in `unit`, `share` of the ceiling of that unit.

    `others`: ms of what does the same work another way, None where it cannot.
    """

    case: str
    what: str
    ms: float
    low: float
    high: float
    rate: float
    unit: str
    share: float
    others: dict[str, float | None] = field(default_factory=dict)


def times(run: Callable[[], Any]) -> tuple[float, float, float]:
    """Median, lower and upper quartile in ms, with the second-level cache emptied before each run."""
    import triton

    middle, low, high = triton.testing.do_bench(run, warmup=30, rep=150, quantiles=[0.5, 0.25, 0.75])
    return middle, low, high


def backward(run: Callable[[], Any], leaves: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """The backward pass of `run`, which gives a tensor or a tuple of them, alone and to be repeated."""
    outs = run()
    grads = tuple(torch.randn_like(x) for x in outs) if isinstance(outs, tuple) else torch.randn_like(outs)
    return lambda: torch.autograd.grad(outs, leaves, grads, retain_graph=True)


def other(run: Callable[[], Any], leaves: Sequence[torch.Tensor] = ()) -> float | None:
    """Median ms of `run`, with `leaves` of its backward pass; None where a library refuses or memory is short."""
    with suppress(RuntimeError, ValueError, TypeError):
        run = backward(run, leaves) if leaves else run
        return times(run)[0]
    torch.cuda.empty_cache()
    return None


class Ceilings:
    """What this GPU reaches: TFLOP/s of a large matmul, GB/s (read and written) of a large copy; bfloat16."""

    def __init__(self) -> None:
        a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        source = torch.empty(COPIED // 2, device="cuda", dtype=torch.bfloat16).normal_()
        target = torch.empty_like(source)
        self._rates = {
            "TFLOP/s": 2 * SIZE**3 / times(lambda: torch.mm(a, b))[0] / 1e9,
            "GB/s": 2 * COPIED / times(lambda: target.copy_(source))[0] / 1e6,
        }

    def row(self, case: str, what: str, run: Callable[[], Any], work: float, unit: str, **others: Any) -> Row:
        """`work`: FLOPs or bytes of one run, as `unit` says."""
        middle, low, high = times(run)
        rate = work / middle / (1e9 if unit == "TFLOP/s" else 1e6)
        return Row(case, what, middle, low, high, rate, unit, rate / self._rates[unit], others)

    @property
    def rates(self) -> dict[str, float]:
        return dict(self._rates)


def main(rows: Callable[[Ceilings, str], Iterable[Row]], check: Callable[[], Any]) -> int:
    """Print the rows, after `check` has passed; `rows(ceilings, only)` yields those whose case has `only` in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a part of the case's name")
    parser.add_argument("--json", type=Path, help="write the rows here")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU here: this bench is of kernels that run on one", file=sys.stderr)
        return 1
    import triton

    check()
    ceilings, found = Ceilings(), []
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    print(head, {unit: round(rate) for unit, rate in ceilings.rates.items()}, flush=True)
    for row in rows(ceilings, given.only):
        found.append(row)
        print(text(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps({**head, "ceilings": ceilings.rates, "rows": [asdict(r) for r in found]}))
    return 0


def text(row: Row) -> str:
    rest = "  ".join(f"{name} {'-' if ms is None else f'{ms:.3f}'}" for name, ms in row.others.items())
    return (
        f"{row.case:34s} {row.what:22s} {row.ms:8.3f} ms ({row.low:.3f} to {row.high:.3f}) "
        f"{row.rate:6.0f} {row.unit} {row.share:4.0%}  {rest}"
    )
