"""In: a plan. Out: `Work`: its training, what feeds it, its evaluations and outputs, found along the typed edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import attrs

from specforge.plan import Op, Plan, Role
from specforge.settings import (
    CaptureSettings,
    CheckpointSettings,
    CkptSettings,
    EvaluateSettings,
    ExportSettings,
    RecordedSettings,
    RecordSettings,
    SourceSettings,
    TrainSettings,
)

AnySource = SourceSettings | RecordedSettings | CkptSettings
S = TypeVar("S")


@attrs.frozen
class EvaluationWork:
    """An evaluation called `name` and the held-out source it reads."""

    name: str
    settings: EvaluateSettings
    source: AnySource


@attrs.frozen
class Work:
    """What a plan trains. A plan without a checkpoint operation saves at the end only.

    `capture` None: every source is a recording, and the target is not run.
    """

    train: TrainSettings
    source: AnySource
    capture: CaptureSettings | None
    evaluations: tuple[EvaluationWork, ...]
    checkpoint: CheckpointSettings
    exports: tuple[ExportSettings, ...]

    @property
    def sources(self) -> tuple[AnySource, ...]:
        """Training's, then each evaluation's."""
        return (self.source, *(evaluation.source for evaluation in self.evaluations))


def work(plan: Plan) -> Work:
    """Read a plan with one training operation."""
    trainings = [op for op in plan.ops() if isinstance(op.settings, TrainSettings)]
    assert len(trainings) == 1, f"a plan trains one draft, this one has {[op.name for op in trainings]}"
    (train,) = trainings
    assert isinstance(train.settings, TrainSettings)
    return Work(
        train=train.settings,
        source=_source(plan, train),
        capture=None if plan.ops("recorded") else _upstream(plan, train, CaptureSettings),
        evaluations=tuple(
            EvaluationWork(op.name, op.settings, _source(plan, op))
            for op in plan.ops()
            if isinstance(op.settings, EvaluateSettings)
        ),
        checkpoint=next(_settings(plan, CheckpointSettings), CheckpointSettings(every=0, keep=1)),
        exports=tuple(_settings(plan, ExportSettings)),
    )


@attrs.frozen
class RecordWork:
    """What a plan records: everything happens in `role`. `capture`: of files, one document at a time."""

    source: SourceSettings | CkptSettings
    capture: CaptureSettings
    record: RecordSettings
    role: Role


def records(plan: Plan) -> bool:
    """Whether a plan records features, and trains nothing."""
    return bool(plan.ops("record"))


def record_work(plan: Plan) -> RecordWork:
    """Read a plan that records."""
    (op,) = plan.ops("record")
    assert isinstance(op.settings, RecordSettings)
    role = _role(plan, RecordSettings)
    if plan.ops("ckpt"):
        files = _upstream(plan, op, CkptSettings)
        return RecordWork(files, CaptureSettings(files.layers, files.last_hidden, files.dtype, 1), op.settings, role)
    return RecordWork(_upstream(plan, op, SourceSettings), _upstream(plan, op, CaptureSettings), op.settings, role)


def plan_sources(plan: Plan) -> tuple[AnySource, ...]:
    """Every source of a plan that trains or records, training's first."""
    return (record_work(plan).source,) if records(plan) else work(plan).sources


def apart(plan: Plan) -> bool:
    """Whether the target runs in other processes than the training."""
    return bool(plan.ops("train")) and bool(plan.ops("capture")) and capture_role(plan) is not train_role(plan)


def capture_role(plan: Plan) -> Role:
    """The role that runs the target."""
    return _role(plan, CaptureSettings)


def train_role(plan: Plan) -> Role:
    """The role that trains."""
    return _role(plan, TrainSettings)


def _role(plan: Plan, kind: type) -> Role:
    return next(role for role in plan.roles if any(isinstance(op.settings, kind) for op in role.ops))


def _settings(plan: Plan, kind: type[S]) -> Iterator[S]:
    return (op.settings for op in plan.ops() if isinstance(op.settings, kind))


def _source(plan: Plan, op: Op) -> AnySource:
    return _upstream(plan, op, RecordedSettings if plan.ops("recorded") else SourceSettings)


def _upstream(plan: Plan, op: Op, kind: type[S]) -> S:
    """The settings of the nearest `kind` that `op` reads from; what a training read is not what its readers read."""
    waiting, seen = [op], set()
    while waiting:
        for port in waiting.pop(0).inputs:
            name = port.source.rpartition(".")[0]
            if name in seen:
                continue
            seen.add(name)
            source = plan.op(name)
            if isinstance(source.settings, kind):
                return source.settings
            if not isinstance(source.settings, TrainSettings):
                waiting.append(source)
    raise AssertionError(f"{op.name} reads from no {kind.__name__}")
