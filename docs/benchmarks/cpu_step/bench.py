"""In: a recipe. Out: the time of one EAGLE3 micro-step on this CPU beside its own matmuls alone, and their ratio.

    python docs/benchmarks/cpu_step/bench.py recipes/tiny_eagle3.py recipes/smollm2_eagle3.py [--json FILE]

Weights, features and documents are random; sizes and documents per micro-step are the plan's; half of the rows are
supervised, in turns of 60. The matmuls are recorded from a real step, there and back, and replayed by torch.mm and
torch.bmm with the same shapes, layouts and threads. Both are timed in turn: what slows the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specforge.compiler import compile, load
from specforge.plan import Plan
from specforge.runtime.data.batch import Batch, Features, batch
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import init_draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.step.kernels import kernels_of

TIMES, WARMUP, TURN = 15, 2, 60
aten = torch.ops.aten
MATMULS = {aten.mm.default: 0, aten.mm.out: 0, aten.bmm.default: 0, aten.bmm.out: 0, aten.mv.default: 0}
ADDED = {aten.addmm.default: 1, aten.addmm_.default: 1, aten.addmm.out: 1}


class Recorded(TorchDispatchMode):
    """Shapes and strides of both sides of every matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[tuple[Any, Any], tuple[Any, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = MATMULS.get(func, ADDED.get(func))
        if first is not None:
            sides = args[first], args[first + 1]
            self.found.append(tuple((tuple(x.shape), tuple(x.stride())) for x in sides))
        elif "mm" in func.name() or "linear" in func.name():
            raise NotImplementedError(f"{func} is a matmul that this bench does not know")
        return func(*args, **(kwargs or {}))


def documents(plan: Plan, longest: int) -> Pack:
    rng = np.random.default_rng(0)
    made = []
    for index in range(plan.batch.micro_documents or 8):
        length = int(rng.integers(longest // 4, longest + 1))
        tokens = rng.integers(0, plan.target.geometry.vocab_size, length).astype(np.int32)
        made.append(
            Document(index, tokens, np.arange(length) // TURN % 2 == 1 if length > TURN else np.ones(length, bool))
        )
    return Pack(tuple(made))


def step_of(plan: Plan, longest: int) -> tuple[Callable[[], None], Batch]:
    train = plan.op("train").settings
    dtype = getattr(torch, train.precision)
    draft = init_draft(train.draft, 0).to(dtype)
    generator = torch.Generator().manual_seed(1)
    width = train.draft.target_hidden_size
    head = torch.randn(train.draft.vocab_size, width, generator=generator).to(dtype) * 0.05
    step = Eagle3Step(draft, head, train.eagle3, plan.target.geometry.logits, kernels_of(plan))
    pack = documents(plan, longest)
    features = [
        Features(*(torch.randn(n, k * width, generator=generator).to(dtype) for k in (3, 1))) for n in pack.lengths
    ]
    given = batch(pack, features, torch.device("cpu"))

    def run() -> None:
        for parameter in draft.parameters():
            parameter.grad = None
        step(given, pack.supervised).loss.backward()

    return run, given


def matmuls_of(run: Callable[[], None], dtype: torch.dtype) -> Callable[[], None]:
    with Recorded() as mode:
        run()
    sides: dict[Any, torch.Tensor] = {}
    for pair in mode.found:
        for shape, stride in pair:
            if (shape, stride) not in sides:
                sides[shape, stride] = torch.empty_strided(shape, stride, dtype=dtype).normal_(0, 0.02)
    calls = [(torch.bmm if len(a[0]) == 3 else torch.matmul, sides[a], sides[b]) for a, b in mode.found]

    def replay() -> None:
        for function, left, right in calls:
            function(left, right)

    return replay


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def row(recipe: Path) -> dict[str, Any]:
    plan = compile(load(recipe))
    longest = next(op.settings.max_length for op in plan.ops() if op.kind in ("prompts", "conversations"))
    run, given = step_of(plan, longest)
    matmuls = matmuls_of(run, given.aux_RC.dtype)
    found = [(seconds(run), seconds(matmuls)) for _ in range(WARMUP + TIMES)][WARMUP:]
    step, floor = (statistics.median(x) for x in zip(*found))
    ratios = sorted(a / b for a, b in found)
    return {
        "recipe": recipe.stem,
        "rows": given.pack.rows,
        "supervised": given.pack.supervised,
        "step_ms": step * 1e3,
        "matmuls_ms": floor * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the rows here")
    asked = parser.parse_args()
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    machine |= {"threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d")}
    print(machine)
    rows = []
    for recipe in asked.recipes:
        found = row(recipe)
        rows.append(found)
        low, high = found["ratio_quartiles"]
        print(
            f"{found['recipe']:16s} {found['rows']:6d} rows, {found['supervised']} supervised: "
            f"step {found['step_ms']:8.1f} ms, its matmuls {found['matmuls_ms']:8.1f} ms, "
            f"ratio {found['ratio']:.2f} (quartiles {low:.2f} to {high:.2f})",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
