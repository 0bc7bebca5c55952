"""In: a Plan. Out: a trained draft in its run directory, and a Result. The door of the runtime.

A run directory is locked, compared with what it already holds, checked against the machine, and handed to the
executor of the plan's topology. Starting again is resuming: progress is what the latest checkpoint says.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import attrs
import cattrs
from rich.console import Console

from specforge import plan as plans
from specforge.plan import Plan
from specforge.runtime.checkpoint.differences import refuse_changes
from specforge.runtime.checkpoint.export import is_whole
from specforge.runtime.checkpoint.load import find_latest, read_plan, read_progress
from specforge.runtime.checkpoint.save import write_text
from specforge.runtime.executor.colocated import execute as colocated
from specforge.runtime.executor.disaggregated import execute as disaggregated
from specforge.runtime.executor.executed import Executed, Executor
from specforge.runtime.executor.work import apart
from specforge.runtime.memory import memory
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


@attrs.frozen
class _Record:
    """What result.json holds of a `Result`, and the digest of the plan. Paths are relative to the run's folder."""

    digest: str
    step: int
    checkpoint: str
    exports: tuple[str, ...]
    metrics: dict[str, float | None]
    best_score: float | None


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
            refuse_changes(read_plan(latest), plan, str(folder.path), read_progress(latest).schedule_steps)
        preflight(plan, folder.path)
        folder.result.unlink(missing_ok=True)
        write_text(folder.plan, plans.dump(plan))
        with _memory(plan, folder):
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


def _memory(plan: Plan, folder: RunFolder) -> AbstractContextManager[None]:
    estimate = sum(part.bytes for part in plan.memory) / 2**30
    return memory(
        f"{plan.name} was trained (the plan estimates {estimate:.1f} GiB on {plan.device.name})",
        "Lower train.batch_size (train.accumulation makes up for it), train.features.source.max_length or "
        "topology.engine.batch_size, and give the changed recipe another output_dir. If another program holds the "
        f"memory, end it and run this again: it goes on from the last checkpoint in {folder.path}",
    )


def topology(plan: Plan) -> str:
    """What picks the executor: whether the target runs where the draft is trained."""
    return "disaggregated" if apart(plan) else "colocated"


def _result_text(executed: Executed, plan: Plan, folder: RunFolder) -> str:
    state = executed.state
    record = _Record(
        digest=plan.digest,
        step=state.step,
        checkpoint=str(executed.checkpoint.relative_to(folder.path)),
        exports=tuple(str(path.relative_to(folder.path)) for path in executed.exports),
        metrics=state.metrics,
        best_score=state.best_score,
    )
    return json.dumps(cattrs.unstructure(record), indent=1) + "\n"


def _finished(folder: RunFolder, plan: Plan) -> Result | None:
    """The result of this very plan, where the folder holds it. A damaged file tells of no finished run."""
    try:
        record = cattrs.structure(json.loads(folder.result.read_text(encoding="utf-8")), _Record)
    except (FileNotFoundError, ValueError, cattrs.BaseValidationError):
        return None
    checkpoint = folder.path / record.checkpoint
    exports = tuple(folder.path / path for path in record.exports)
    if record.digest != plan.digest or not checkpoint.is_dir() or not all(map(is_whole, exports)):
        return None
    return Result(
        exit_code=0,
        folder=folder.path,
        step=record.step,
        checkpoint=checkpoint,
        exports=exports,
        metrics=record.metrics,
        best_score=record.best_score,
        already_finished=True,
    )
