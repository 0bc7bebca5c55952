"""In: a plan whose roles are processes of their own. Out: `Layout`: how many of each, their store and their bounds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from specforge.plan import Plan
from specforge.runtime.control.limits import Limits
from specforge.runtime.executor.work import capture_role
from specforge.settings import StoreSettings


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
    control, store = plan.control, store_settings(plan)
    assert control is not None, "a plan of processes apart has their bounds"
    limits = Limits(store.high_documents or 0, store.low_documents or 0, control.lease_s, control.attempts)
    servers = capture_role(plan).ranks
    return Layout(servers, control.workers_per_server, store.retain, limits, control.patience_s, store.path)


def store_settings(plan: Plan) -> StoreSettings:
    """The store of a plan: all its puts and gets have the same."""
    return next(op.settings for op in plan.ops("put") if isinstance(op.settings, StoreSettings))


def store_folder(found: Layout, plan: Plan, folder: Path) -> Path:
    """Where the run in `folder` keeps its features; the same at every start of it, and never another run's."""
    if found.store is None:
        return folder.absolute() / "features"
    run = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return Path(plan.base, found.store).absolute() / f"{plan.name}-{run}"
