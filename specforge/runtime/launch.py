"""In: assignments. Out: `Processes`: the processes of a run on this host, started, watched and ended together.

Any end but the trainer's own is a fault, and the first cause of it is what the run says. No torch, no HTTP stack here.
"""

from __future__ import annotations

import http.client
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs

from specforge.runtime.assignment import Assignment, write_assignment
from specforge.runtime.child import INTERRUPTED, PEER_GONE
from specforge.runtime.env import isolated_children

LOOK_S = 0.05
# whoever loses a peer ends at once; the peer's own end is seen within this time, and is the cause
CAUSE_S = 3.0
END_S = 4.0
LONGEST_START_S = 24 * 3600.0
SHOWN_LINES = 12


class ProcessError(ValueError):
    """A process of the run ended before the run did."""


class Process(Protocol):
    """What is used of subprocess.Popen."""

    pid: int

    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


@attrs.frozen
class Command:
    """How to start a process. `listening`: what it gets as standard input."""

    assignment: Path
    out: Path
    err: Path
    listening: socket.socket | None


def start(command: Command) -> Process:
    """Start it in a session of its own, so that a Ctrl-C on the terminal reaches only the run."""
    with command.out.open("wb") as out, command.err.open("wb") as err, isolated_children():
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "specforge.runtime.child", str(command.assignment)],
            stdin=command.listening or subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def listen() -> socket.socket:
    """A listening socket on a free port of this machine. It is bound for good: nobody else can take the port."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def url(listening: socket.socket) -> str:
    """Where `listening` is reached."""
    host, port = listening.getsockname()
    return f"http://{host}:{port}"


class _Child:
    def __init__(self, name: str, process: Process, command: Command) -> None:
        self.name, self.process, self.command = name, process, command

    def how(self) -> str:
        """How it ended, with its last lines."""
        status = self.process.poll()
        assert status is not None
        if status < 0:
            what = f"{self.name} was killed by {signal.Signals(-status).name} (process {self.process.pid})"
        else:
            what = f"{self.name} ended with exit status {status}"
        lines = self.command.err.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
        if not lines:
            return f"{what} and said nothing; its log is {self.command.out}"
        return "\n".join([f"{what}. Its last lines ({self.command.err}):", *(f"  {line}" for line in lines)])


class Processes:
    """Within the block, processes run; at its end all of them are gone. `folder`: for assignments and logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[_Child] = []
        self._ready: list[_Readiness] = []

    def __enter__(self) -> Processes:
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        (self._folder / "control").mkdir(parents=True, exist_ok=True)
        return self

    def start(self, assignment: Assignment, listening: socket.socket | None = None, ready_s: float = math.inf) -> Path:
        """Start a process. With `listening` it is a service, with `ready_s` to answer. Returns its output's file."""
        name, logs = assignment.name, self._folder / "logs"
        file = self._folder / "control" / f"{name}.json"
        write_assignment(file, assignment)
        command = Command(file, logs / f"{name}.out", logs / f"{name}.err", listening)
        self._children.append(_Child(name, start(command), command))
        if listening is not None:
            self._ready.append(_Readiness(name, listening.getsockname(), ready_s))
            listening.close()  # the child has it: with the child it ends
        return command.out

    def watch(self, seen: Callable[[], None], stopping: Callable[[], bool]) -> int:
        """Wait for the trainer. Returns its exit status, 0 or 130. Calls `seen` twenty times a second.

        Once `stopping` says so, the trainer is asked to save and end. Raises ProcessError for any other end.
        """
        (trainer,) = (child for child in self._children if child.name == "trainer")
        asked = False
        while True:
            ended = [child for child in self._children if child.process.poll() is not None]
            seen()
            status = trainer.process.poll()
            if status in (0, INTERRUPTED):
                return status
            if asked and status == -signal.SIGINT:  # it had no handler yet
                return INTERRUPTED
            if ended:
                raise ProcessError(self._cause())
            for readiness in self._ready:
                readiness.check()
            if stopping() and not asked:
                asked = True
                trainer.process.send_signal(signal.SIGINT)
            time.sleep(LOOK_S)

    def _cause(self) -> str:
        """What the first cause of the end is, where several ended within CAUSE_S: not who lost another."""
        deadline = time.monotonic() + CAUSE_S
        while True:
            ended = [child for child in self._children if child.process.poll() is not None]
            causes = [child for child in ended if child.process.poll() != PEER_GONE]
            if causes or time.monotonic() > deadline:
                # killed from outside comes before whoever noticed it
                return min(causes or ended, key=lambda child: child.process.poll() or 0).how()
            time.sleep(LOOK_S)

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


class _Readiness:
    """Asks a service for /health once: the answer comes when the service is ready."""

    def __init__(self, name: str, address: tuple[str, int], ready_s: float) -> None:
        self._name, self._address, self._ready_s = name, address, ready_s
        self._began, self._answered = time.monotonic(), False
        threading.Thread(target=self._ask, daemon=True).start()

    def check(self) -> None:
        """Raises ProcessError where it takes too long."""
        if not self._answered and time.monotonic() - self._began > self._ready_s:
            raise ProcessError(f"{self._name} was not ready within {self._ready_s:.0f} s; its log says more")

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=LONGEST_START_S)
        try:
            connection.request("GET", "/health")
            self._answered = connection.getresponse().status == http.client.OK
        except OSError:
            return  # it ended, which `watch` sees
        finally:
            connection.close()
