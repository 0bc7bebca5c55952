"""In: a plan whose target and trainer are apart, its run folder. Out: a trained draft, by processes of this host.

This process prepares the sources, starts controller, capture servers, workers and trainer from the plan in the run
folder, and watches them: see launch.py. Progress is what the trainer says.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import attrs
from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.assignment import Assignment
from specforge.runtime.checkpoint.load import find_latest
from specforge.runtime.checkpoint.state import STATE_FILE, read_state
from specforge.runtime.executor.executed import Executed, read_executed
from specforge.runtime.executor.layout import layout, store_folder
from specforge.runtime.executor.preparation import prepare_run
from specforge.runtime.launch import Processes, listen, url
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.store.shared_files import SharedFiles
from specforge.runtime.train.interrupt import Interrupt


def execute(plan: Plan, folder: RunFolder, console: Console) -> Executed:
    """Train from the folder's latest checkpoint, or from the start, and export. The caller holds the folder's lock."""
    sources = prepare_run(plan, folder, console)
    with Interrupt() as interrupt:
        found = layout(plan)
        store = store_folder(found, plan, folder.path)
        control, servers = listen(), [listen() for _ in range(found.servers)]
        assignment = Assignment(
            kind="controller",
            number=0,
            folder=str(folder.path),
            step=_step(folder),
            sources=tuple(str(made.file) for made in sources),
            control=url(control),
            servers=tuple(map(url, servers)),
            store=str(store),
            token=secrets.token_urlsafe(32),
            parent=os.getpid(),
            layout=found,
        )
        folder.executed.unlink(missing_ok=True)
        with Processes(folder.path) as processes:
            processes.start(assignment, control, ready_s(plan, "controller"))
            for number, listening in enumerate(servers):
                server = attrs.evolve(assignment, kind="server", number=number)
                processes.start(server, listening, ready_s(plan, server.name))
            for number in range(found.workers * found.servers):
                processes.start(attrs.evolve(assignment, kind="worker", number=number))
            output = Output(processes.start(attrs.evolve(assignment, kind="trainer")), console)
            console.print(f"controller at {assignment.control}, logs in {folder.path}/logs", highlight=False)
            processes.watch(output.relay, lambda: interrupt.requested)
    if not folder.executed.exists():
        raise KeyboardInterrupt  # before training: nothing to save
    executed = read_executed(folder.executed)
    if not executed.interrupted:
        SharedFiles(store).clean()
    return executed


def ready_s(plan: Plan, name: str) -> float:
    """How long the process called `name` may take to answer."""
    (process,) = (process for process in plan.processes if process.name == name)
    return process.services[0].timeout_s


class Output:
    """What a process writes to `path`, as lines on `console`."""

    def __init__(self, path: Path, console: Console) -> None:
        self._path, self._console, self._read = path, console, 0

    def relay(self) -> None:
        """Show the lines that came since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _step(folder: RunFolder) -> int:
    """The optimizer steps that the latest checkpoint holds."""
    latest = find_latest(folder.checkpoints)
    return 0 if latest is None else read_state((latest / STATE_FILE).read_text(encoding="utf-8")).step
