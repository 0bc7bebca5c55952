"""In: a Plan. Out: a trained draft in its run directory, and a Result. The door of the runtime.

A run directory is locked, compared with what it already holds, checked against the machine, and handed to the
executor of the plan's topology. Starting again is resuming: progress is what the latest checkpoint says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console

from specforge import plan as plans
from specforge.plan import Plan
from specforge.runtime.checkpoint.differences import refuse_changes
from specforge.runtime.checkpoint.load import find_latest
from specforge.runtime.checkpoint.save import write_text
from specforge.runtime.checkpoint.state import PLAN_FILE
from specforge.runtime.executor.colocated import execute as colocated
from specforge.runtime.executor.disaggregated import execute as disaggregated
from specforge.runtime.executor.executed import Executed, Executor
from specforge.runtime.executor.work import capture_role, train_role
from specforge.runtime.preflight import preflight
from specforge.runtime.run_folder import RunFolder

EXECUTORS: dict[str, Executor] = {"colocated": colocated, "disaggregated": disaggregated}
INTERRUPTED = 130


@attrs.frozen
class Result:
    """How a run ended. `exit_code`: 0 finished (`already_finished`: it already was), 130 interrupted and saved.

    `metrics` are the last logged ones; `best_score` the best simulated acceptance length, None without evaluations.
    """

    exit_code: int
    folder: Path
    step: int
    checkpoint: Path
    exports: tuple[Path, ...]
    metrics: dict[str, float | None]
    best_score: float | None
    already_finished: bool


def run(plan: Plan, console: Console | None = None) -> Result:
    """Run `plan` in its output_dir (relative to the current folder), from the start or from its latest checkpoint.

    `console`: where progress goes, standard error by default. SIGINT and SIGTERM finish the step, save, and give exit
    code 130. Raises ValueError (PreflightError, CheckpointError, RunFolderError, NonFiniteError, or a fault of the
    data or the target) for what a user can mend, and KeyboardInterrupt at a second signal or one before training.
    """
    console = console or Console(stderr=True)
    folder = RunFolder(Path(plan.output_dir))
    with folder.locked():
        if (before := _finished(folder, plan)) is not None:
            console.print(f"{folder.path}: this run is finished ({before.step} steps)", markup=False, highlight=False)
            return before
        if (latest := find_latest(folder.checkpoints)) is not None:
            old = plans.load((latest / PLAN_FILE).read_text(encoding="utf-8"))
            refuse_changes(old, plan, str(folder.path))
        preflight(plan, folder.path)
        folder.result.unlink(missing_ok=True)
        write_text(folder.plan, plans.dump(plan))
        executed = EXECUTORS[topology(plan)](plan, folder, console)
        if not executed.interrupted:
            write_text(folder.result, _result_text(executed, plan, folder))
    return Result(
        exit_code=INTERRUPTED if executed.interrupted else 0,
        folder=folder.path,
        step=executed.state.step,
        checkpoint=executed.checkpoint,
        exports=executed.exports,
        metrics=executed.state.metrics,
        best_score=executed.state.best_score,
        already_finished=False,
    )


def topology(plan: Plan) -> str:
    """What picks the executor: whether the target runs where the draft is trained."""
    return "colocated" if capture_role(plan) is train_role(plan) else "disaggregated"


def _result_text(executed: Executed, plan: Plan, folder: RunFolder) -> str:
    state = executed.state
    body = {
        "digest": plan.digest,
        "step": state.step,
        "checkpoint": str(executed.checkpoint.relative_to(folder.path)),
        "exports": [str(path.relative_to(folder.path)) for path in executed.exports],
        "metrics": state.metrics,
        "best_score": state.best_score,
    }
    return json.dumps(body, indent=1) + "\n"


def _finished(folder: RunFolder, plan: Plan) -> Result | None:
    """The result of this very plan, where the folder holds it."""
    try:
        body: dict[str, Any] = json.loads(folder.result.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    checkpoint = folder.path / body["checkpoint"]
    exports = tuple(folder.path / path for path in body["exports"])
    if body["digest"] != plan.digest or not all(path.is_dir() for path in (checkpoint, *exports)):
        return None
    return Result(
        0, folder.path, body["step"], checkpoint, exports, body["metrics"], body["best_score"], already_finished=True
    )
