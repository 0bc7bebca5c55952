"""In: a plan of processes apart, run by the command line. Out: killed -9 itself, a run leaves nobody, and goes on."""

import json
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file

from specforge import plan as plans
from specforge.runtime.run import run
from specforge.runtime.train.metrics import TIMING

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
DEADLINE_S = 120
SETTINGS = {"epochs": 12, "learning_rate": 1e-2}  # 72 steps


def running(folder):
    """Process ids of whoever was started with an assignment in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{folder}/control/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=DEADLINE_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline


def lines(folder):
    return [
        {key: value for key, value in json.loads(line).items() if key not in TIMING}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def logged(folder):
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def test_a_run_that_is_killed_leaves_nobody_and_goes_on_to_the_same_bits(toy, tmp_path, monkeypatch):
    """As a user starts it: every process by exec. Killed while the others import, and in the middle of training."""
    monkeypatch.chdir(tmp_path)
    plan = toy.plan(train=SETTINGS, checkpoint={"every": 10, "keep": 2}, evaluate=50)
    run(attrs.evolve(plan, output_dir="whole"))
    folder = tmp_path / "killed"
    (tmp_path / "plan.json").write_text(plans.dump(attrs.evolve(toy.disaggregated(plan), output_dir=str(folder))))
    command = [sys.executable, "-m", "specforge.cli", "run", "plan.json"]
    for moment in (lambda: len(running(folder)) == 4, lambda: logged(folder) >= 25):
        with Path("said").open("w") as said:
            process = subprocess.Popen(command, stderr=said, stdout=said)
        wait_until(lambda process=process, moment=moment: moment() or process.poll() is not None)
        assert process.poll() is None, Path("said").read_text()
        process.kill()
        process.wait()
        wait_until(lambda: not running(folder), seconds=10)
    assert logged(folder) < len(lines(tmp_path / "whole"))
    assert subprocess.run(command, check=False, capture_output=True, timeout=DEADLINE_S).returncode == 0
    one, other = (load_file(f / "checkpoints/latest/draft.safetensors") for f in (tmp_path / "whole", folder))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert lines(tmp_path / "whole") == lines(folder)
    assert list((folder / "features").iterdir()) == []
