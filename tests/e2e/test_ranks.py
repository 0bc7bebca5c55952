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


def test_ctrl_c_in_a_terminal_reaches_every_process_and_the_run_saves(tmp_path):
    """A terminal signals the whole process group: the launching process, the fork server and both ranks."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    command = [sys.executable, "-m", "specforge.cli", "run", "recipes/tiny_eagle3.py", *PACKED]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    metrics, deadline = tmp_path / "runs/tiny-eagle3/metrics.jsonl", time.monotonic() + DEADLINE_S
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 130, said
    assert "interrupted at step" in said
    assert "Traceback" not in said
    assert (tmp_path / "runs/tiny-eagle3/checkpoints/latest/draft.safetensors").is_file()
