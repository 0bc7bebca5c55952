"""In: nothing. Out: `Assignment`, what one process of a run is told: its place in the plan and where the others are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import cattrs

from specforge import plan as plans
from specforge.plan import Plan, Process
from specforge.runtime.executor.layout import Layout


@attrs.frozen
class Assignment:
    """The file that a process of a run is started with; it holds the run's token, so only its owner may read it.

    `kind`: "controller", "server", "worker" or "trainer"; `number`: which of them. `step`: the optimizer step that
    the run goes on from. `sources`: the prepared documents of the plan's sources, training first. `control`, `servers`:
    URLs. `store`: the folder of the feature store. `parent`: the process that it ends with. `layout`: what the plan
    says of all of them.
    """

    kind: str
    number: int
    folder: str
    step: int
    sources: tuple[str, ...]
    control: str
    servers: tuple[str, ...]
    store: str
    token: str
    parent: int
    layout: Layout

    @property
    def name(self) -> str:
        """As in logs and messages: "server-0"."""
        return self.kind if self.kind in ("controller", "trainer") else f"{self.kind}-{self.number}"

    @property
    def plan(self) -> Plan:
        """The run's plan."""
        return plans.load((Path(self.folder) / "plan.json").read_text(encoding="utf-8"))


def process(assignment: Assignment) -> Process:
    """The process of the plan that the assignment is for."""
    return next(found for found in assignment.plan.processes if found.name == assignment.name)


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write it for this user's eyes only."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(cattrs.unstructure(assignment), file, indent=1)


def read_assignment(path: Path) -> Assignment:
    """What was written."""
    return cattrs.structure(json.loads(path.read_text(encoding="utf-8")), Assignment)
