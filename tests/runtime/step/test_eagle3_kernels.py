"""In: toy drafts in float32. Out: the step on the Triton kernels equals the step in float64 on the PyTorch path.

Where there is no GPU it runs in a process of its own under Triton's interpreter, padded as on a GPU.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from specforge_kernels.ttt_attention.own_pairs import Buffers

sys.path.insert(0, str(Path(__file__).parent))  # run as a script below
import toy_eagle3 as toy

from specforge.runtime.data.batch import Features, batch
from specforge.runtime.step import eagle3
from specforge.runtime.step.kernels import Kernels
from specforge.runtime.step.rows import row_plan

TOLERANCE = 2e-5
CASES = {
    "documents": (toy.Options(), (13, 9, 1, 20), 0.5),
    "all supervised, LK lambda": (toy.Options(lk="lambda"), (30,), 1.0),
    "LK alpha, normed feedback": (toy.Options(lk="alpha", norm_output=True), (12, 8), 0.7),
}


def result(model, options, pack, features, implementation):
    dtype, device = model.fc.weight.dtype, model.fc.weight.device
    step = eagle3.Eagle3Step(
        model, toy.head(dtype).to(device), toy.step(model.cpu(), options).settings, kernels=Kernels.all(implementation)
    )
    model.to(device)
    cast = [Features(f.aux_TC.to(dtype), f.last_TH.to(dtype)) for f in features]
    found = step(batch(pack, cast, device), 20)
    found.loss.backward()
    grads = {n: p.grad.cpu().double() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": found.loss.detach().cpu().double(), **grads, **{n: s.cpu() for n, s in found.sums.items()}}


def main(device: str) -> None:
    gc.disable()
    for name, (options, lengths, share) in CASES.items():
        pack, features = toy.made(toy.random_masks(lengths, share, 1))
        wanted = result(toy.draft(options), options, pack, features, "torch")
        found = result(toy.draft(options, torch.float32).to(device), options, pack, features, "triton")
        for key, value in wanted.items():
            error = ((found[key] - value).norm() / value.norm().clamp(min=1e-6)).item()
            assert error < TOLERANCE, (name, key, error)
        left = [x for x in gc.get_objects() if isinstance(x, Buffers)]
        assert not left, "a finished step keeps its graph until Python looks for cycles"
        print(name, "equal", flush=True)


@pytest.mark.cpu
def test_step_on_the_kernels_under_the_interpreter():
    run = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gpu
def test_step_on_the_kernels_on_the_gpu():
    main("cuda")


if __name__ == "__main__":
    from specforge_kernels.testing import mend_interpreter

    mend_interpreter()
    eagle3.row_plan = lambda pack, steps, cuda, kernels: row_plan(pack, steps, True, kernels)
    main("cpu")
