"""In: toy runs in processes of their own, killed from outside. Out: resumed, they end at an undisturbed run's bits.

Processes are forked from a server that has imported torch but run nothing of it: each is a real process, without
seconds of imports.
"""

import json
import multiprocessing
import os
import random
import runpy
import signal
import time

import attrs
import pytest
import torch
from safetensors.torch import load_file

from specforge import plan as plans
from specforge.runtime.checkpoint.load import load
from specforge.runtime.train.metrics import TIMING

pytestmark = pytest.mark.cpu
DEADLINE_S = 60
SCRIPT = """
import sys
import torch
from specforge.plan import load
from specforge.runtime.run import run
torch.set_num_threads(1)
sys.exit(run(load(open(PLAN).read())).exit_code)
"""
SETTINGS = {"epochs": 5, "precision": "bfloat16", "learning_rate": 1e-2}  # 30 steps


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["specforge.runtime.run", "transformers.models.llama.modeling_llama"])
    return context


@attrs.frozen
class Runner:
    """Starts runs of one plan."""

    context: object
    script: str
    plan: str

    def start(self):
        process = self.context.Process(target=runpy.run_path, args=(self.script, {"PLAN": self.plan}))
        process.start()
        return process

    def finish(self):
        process = self.start()
        process.join(DEADLINE_S)
        assert process.exitcode == 0


@pytest.fixture
def runner(processes, tmp_path):
    def make(plan, name):
        plan = attrs.evolve(plan, output_dir=str(tmp_path / name))
        (tmp_path / f"{name}.json").write_text(plans.dump(plan))
        (tmp_path / "script.py").write_text(SCRIPT)
        return Runner(processes, str(tmp_path / "script.py"), str(tmp_path / f"{name}.json"))

    return make


def wait_for(condition, process):
    """Poll closely: the kill has to come at the moment."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.is_alive(), "the run ended before the moment to kill it"
        assert time.monotonic() < deadline, "the moment to kill the run did not come"


def lines(folder):
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def saving(folder):
    try:
        return any(name.startswith(".saving-") for name in os.listdir(folder / "checkpoints"))
    except FileNotFoundError:
        return False


def assert_same_run(some, other):
    """Weights, moments, step counts, progress and the log without its timing."""
    for file in ("draft.safetensors", "optimizer.safetensors"):
        one, two = (load_file(folder / "checkpoints" / "latest" / file) for folder in (some, other))
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
    states = [load(folder / "checkpoints" / "latest").state for folder in (some, other)]
    assert attrs.evolve(states[0], digest="") == attrs.evolve(states[1], digest="")
    logs = [
        [
            {key: value for key, value in json.loads(line).items() if key not in TIMING}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (some, other)
    ]
    assert logs[0] == logs[1]


def test_killed_at_random_and_during_saves_a_run_ends_at_the_same_bits(toy, runner, tmp_path):
    """Six kill -9, seeded: three after a random number of further steps, three while a save is under way."""
    plan = toy.plan(train=SETTINGS, checkpoint={"every": 2, "keep": 2}, evaluate=7)
    runner(plan, "whole").finish()
    chance = random.Random(11)
    folder, interrupted = tmp_path / "killed", runner(plan, "killed")
    resumed_at = []
    for during_save in (False, True, True, False, True, False):
        start = lines(folder)
        process = interrupted.start()
        after = start + chance.randint(2, 4)
        wait_for(lambda after=after: lines(folder) >= after, process)
        if during_save:
            wait_for(lambda: saving(folder), process)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        latest = folder / "checkpoints" / "latest"
        resumed_at.append(load(latest).state.step if latest.exists() else 0)
    assert resumed_at == sorted(resumed_at)
    assert 0 < resumed_at[-1] < 30
    interrupted.finish()
    assert_same_run(folder, tmp_path / "whole")
    left = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith("."))
    assert left == []


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_exits_130_and_the_rest_follows(toy, runner, tmp_path, which):
    plan = toy.plan(train=SETTINGS)
    folder, stopped = tmp_path / "stopped", runner(plan, "stopped")
    process = stopped.start()
    wait_for(lambda: lines(folder) >= 3, process)
    os.kill(process.pid, which)
    process.join(DEADLINE_S)
    assert process.exitcode == 130
    step = load(folder / "checkpoints" / "latest").state.step
    assert 3 <= step < 30
    assert lines(folder) == step
    assert not (folder / "export").exists()
    stopped.finish()
    runner(plan, "whole").finish()
    assert_same_run(folder, tmp_path / "whole")
    assert (folder / "export" / "sglang" / "model.safetensors").is_file()
