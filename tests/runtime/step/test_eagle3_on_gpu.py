"""In: the step in bfloat16 on a GPU, packs of random lengths. Out: it waits for nothing and soon compiles nothing."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "docs/benchmarks/eagle3_step"))
from bench import SMALL, Bench, Shape

pytestmark = pytest.mark.gpu
STEPS, SETTLED = 200, 10


def shapes(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        lengths = tuple(int(n) for n in rng.integers(8, 700, rng.integers(1, 6)))
        yield Shape(lengths, turn=int(rng.integers(5, 60)), share=float(rng.uniform(0.1, 1.0)))


def test_steps_over_random_lengths_compile_nothing_after_the_tenth(monkeypatch):
    from triton import knobs

    compiled = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **given: compiled.append(given["repr"]))
    bench = Bench(SMALL, "cuda", torch.bfloat16, "triton")
    for number, shape in enumerate(shapes(STEPS)):
        if number == SETTLED:
            assert compiled, "the hook sees what is compiled"
            compiled.clear()
        bench.run(bench.batch(shape))
    assert not compiled


def test_a_step_does_not_wait_for_the_device():
    bench = Bench(SMALL, "cuda", torch.bfloat16, "triton")
    given = [bench.batch(shape) for shape in shapes(SETTLED)]
    for batch in given:  # kernels are compiled, the allocator has its blocks
        bench.run(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in given:
            bench.run(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
