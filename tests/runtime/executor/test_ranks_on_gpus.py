"""In: toy plans on GPUs. Out: NCCL changes no bit where it sums one rank, and rounding only where it sums two."""

import io

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.runtime.executor import colocated
from specforge.runtime.run import run
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.train.launch import launch

pytestmark = pytest.mark.gpu
SHORT = {"max_steps": 7, "schedule_steps": 7, "learning_rate": 1e-3, "eps": 1e-3}


def on(plan, *gpus):
    """The plan with a rank on each of these GPUs."""
    role = attrs.evolve(plan.roles[0], device="H200", gpus=gpus, ranks=len(gpus))
    return attrs.evolve(plan, roles=(role,), output_dir=f"on-{'-'.join(map(str, gpus))}")


def masters(checkpoint):
    return load_file(checkpoint / "draft.safetensors")


def test_a_group_of_one_gives_the_bits_of_a_rank_alone(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = on(toy.plan(train=SHORT, evaluate=3), 0)
    alone = run(plan, Console(file=io.StringIO()))
    folder = RunFolder(tmp_path / "group")
    folder.path.mkdir()
    group = launch(1, colocated._rank, (plan, folder))
    found = masters(group.checkpoint)
    assert [n for n, tensor in masters(alone.checkpoint).items() if not torch.equal(tensor, found[n])] == []


def test_two_gpus_learn_what_one_learns_of_the_same_packs(toy, tmp_path, monkeypatch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    monkeypatch.chdir(tmp_path)
    two = run(on(toy.plan(train={**SHORT, "accumulation": 1}, ranks=2), 0, 1), Console(file=io.StringIO()))
    one = run(on(toy.plan(train={**SHORT, "accumulation": 2}), 0), Console(file=io.StringIO()))
    for name, tensor in masters(one.checkpoint).items():
        torch.testing.assert_close(masters(two.checkpoint)[name], tensor, rtol=0, atol=1e-5)
