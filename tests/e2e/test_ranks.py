"""In: the tiny recipe on two ranks, from the command line. Out: a terminal's Ctrl-C saves and exits 130, no trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
PACKED = ["--set", "topology.ranks=2", "--set", "train.batch_size=None", "--set", "train.pack_tokens=96"]


@pytest.fixture
def process(tmp_path):
    """The run, in a process group of its own, as a terminal starts it."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    command = [sys.executable, "-m", "specforge.cli", "run", "recipes/tiny_eagle3.py", *PACKED]
    return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ctrl_c(process, moment):
    """A terminal signals the whole group: the launching process, the fork server, the ranks. What the run then said."""
    deadline = time.monotonic() + DEADLINE_S
    while not moment():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    return said


def test_ctrl_c_while_ranks_train_saves(process, tmp_path):
    metrics = tmp_path / "runs/tiny-eagle3/metrics.jsonl"
    said = ctrl_c(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)
    assert "interrupted at step" in said
    assert (tmp_path / "runs/tiny-eagle3/checkpoints/latest/draft.safetensors").is_file()


def test_ctrl_c_while_the_fork_server_imports(process):
    def imports():
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return any("forkserver" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children)

    ctrl_c(process, imports)
