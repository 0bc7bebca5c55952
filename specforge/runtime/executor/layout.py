"""In: a plan whose roles are processes of their own. Out: `Layout`: how many of each, their store and their bounds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from specforge.plan import Plan
from specforge.runtime.control.limits import Limits
from specforge.settings import StoreSettings


@attrs.frozen
class Layout:
    """`workers`: for each server. `retain`: "prompts" (captured again after a crash) or "features" (kept until a
    checkpoint covers them). `patience_s`: the longest the trainer waits for a turn while nothing changes. `store`: a
    folder that the features of any number of runs go into, each into a folder of its own; None: the run folder.
    """

    servers: int
    workers: int
    retain: str
    limits: Limits
    patience_s: float
    store: str | None = None


def layout(plan: Plan) -> Layout:
    """What the plan says of its processes. Watermarks that are known after preparation are 0 here: see `at_least`."""
    store = next(op.settings for op in plan.ops() if isinstance(op.settings, StoreSettings))
    control = plan.control
    assert control is not None, "a plan with a store says how long its processes wait"
    limits = Limits(
        high_samples=store.high_documents or 0,
        low_samples=store.low_documents or 0,
        lease_s=control.lease_s,
        attempts=control.attempts,
        high_bytes=store.pool_bytes,
    )
    return Layout(
        servers=sum(process.kind == "capture_server" for process in plan.processes),
        workers=control.workers_per_server,
        retain=store.retain,
        limits=limits,
        patience_s=control.patience_s,
        store=store.path,
    )


def store_folder(found: Layout, plan: Plan, folder: Path) -> Path:
    """Where the run in `folder` keeps its features; the same at every start of it, and never another run's."""
    if found.store is None:
        return folder.absolute() / "features"
    run = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return Path(plan.base, found.store).absolute() / f"{plan.name}-{run}"
