"""In: a plan whose roles are processes of their own. Out: `Layout`: how many of each, their store and their bounds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from specforge.plan import Plan
from specforge.runtime.control.limits import Limits
from specforge.runtime.executor.work import capture_role


@attrs.frozen
class Layout:
    """`retain`: "prompts" (captured again after a crash) or "features" (kept until a checkpoint covers them).

    `patience_s`: the longest the trainer waits for a turn while nothing changes. `store`: a folder that the features of
    any number of runs go into, each into a folder of its own; None: the run folder.
    """

    servers: int
    workers: int
    retain: str
    limits: Limits
    patience_s: float
    store: str | None = None


def layout(plan: Plan) -> Layout:
    """What the plan says of its processes."""
    return Layout(capture_role(plan).ranks, 1, "prompts", Limits(0, 0, 300.0, 3), 900.0)


def store_folder(found: Layout, plan: Plan, folder: Path) -> Path:
    """Where the run in `folder` keeps its features; the same at every start of it, and never another run's."""
    if found.store is None:
        return folder.absolute() / "features"
    run = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return Path(plan.base, found.store).absolute() / f"{plan.name}-{run}"
