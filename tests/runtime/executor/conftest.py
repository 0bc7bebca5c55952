"""In: nothing. Out: `forked`: the processes of a run as forks of a server that has imported torch but run none of it.

Each is a real process with its own pid, files and signals, without seconds of imports; what starts it is all that
differs from specforge.runtime.launch.start.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
from pathlib import Path

import pytest

from specforge.runtime import launch

SCRIPT = """
import os, runpy, signal, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server may have been started with it blocked
for path, number in ((OUT, 1), (ERR, 2)):
    os.dup2(os.open(path, os.O_WRONLY), number)
os.dup2(os.open(os.devnull, os.O_RDONLY) if LISTENING is None else LISTENING.fileno(), 0)
if LISTENING is not None:
    LISTENING.close()
sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
os.setsid()
os.chdir(FOLDER)
sys.argv = ["specforge.runtime.child", ASSIGNMENT]
runpy.run_module("specforge.runtime.child", run_name="__main__")
"""
PRELOADED = [
    "specforge.runtime.run",
    "specforge.runtime.control.client",
    "specforge.runtime.control.service",
    "transformers.models.llama.modeling_llama",
    "uvicorn.protocols.http.h11_impl",
]


class Fork:
    """What launch.Process asks for, over multiprocessing."""

    def __init__(self, process):
        self._process, self.pid = process, process.pid

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode


@pytest.fixture(scope="session")
def forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.fixture
def forked(forkserver, monkeypatch, tmp_path):
    """The running processes by name; the newest of each name."""
    script = tmp_path / "process.py"
    script.write_text(SCRIPT)
    found = {}

    def start(command):
        given = {
            "ASSIGNMENT": str(command.assignment),
            "OUT": str(command.out),
            "ERR": str(command.err),
            "LISTENING": command.listening,
            "FOLDER": os.getcwd(),
        }
        for path in (command.out, command.err):
            path.write_bytes(b"")
        process = forkserver.Process(target=runpy.run_path, args=(str(script), given))
        process.start()
        found[Path(command.assignment).stem] = Fork(process)
        return found[Path(command.assignment).stem]

    monkeypatch.setattr(launch, "start", start)
    return found
