"""In: a plan, its run folder, prepared documents, a target's head. Out: `Trainer`: a trained draft, from any supply.

Start or resume, train, evaluate, save and export, in this order. Where features come from is the supply's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import attrs
import torch
from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.checkpoint.export import export
from specforge.runtime.checkpoint.load import check_optimizer, find_latest, load, restore
from specforge.runtime.checkpoint.rotate import clean
from specforge.runtime.checkpoint.save import save
from specforge.runtime.checkpoint.state import Checkpoint, CheckpointError, State, draft_tensors
from specforge.runtime.data.batch import Batch
from specforge.runtime.data.order import Order
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.vocab_map import check, count, vocab_map
from specforge.runtime.draft.eagle3 import Eagle3Draft
from specforge.runtime.draft.warm_start import first_draft
from specforge.runtime.executor.executed import Executed
from specforge.runtime.executor.run_order import run_order
from specforge.runtime.executor.supply import Supply
from specforge.runtime.executor.work import EvaluationWork, Work, work
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.step.kernels import Kernels, kernels_of
from specforge.runtime.step.result import StepResult
from specforge.runtime.target_head import TargetHead
from specforge.runtime.train.evaluate import evaluate
from specforge.runtime.train.interrupt import Stop
from specforge.runtime.train.loop import (
    Evaluation,
    Outcome,
    QuantumOf,
    Records,
    Step,
    Training,
    Window,
    of_one_rank,
    train,
)
from specforge.runtime.train.metrics import MetricsFile, Unwritten
from specforge.runtime.train.optimizer import Optimizer
from specforge.runtime.train.parallel import Ranks
from specforge.runtime.train.progress import Progress, open_progress
from specforge.settings import Eagle3Settings, TrainSettings


@attrs.frozen(eq=False)
class _Resumed:
    """The checkpoint a run goes on from, and its folder."""

    folder: Path
    checkpoint: Checkpoint


@attrs.frozen(eq=False)
class Seat:
    """Where this process stands: among its ranks, on its device; `stop` tells, while it is open, whether to stop."""

    ranks: Ranks
    device: torch.device
    stop: AbstractContextManager[Stop]


class Trainer:
    """The training of one plan in one process. `sources`: prepared documents, training's first. Rank 0 writes."""

    def __init__(
        self, plan: Plan, folder: RunFolder, console: Console, sources: Sequence[Prepared], seat: Seat
    ) -> None:
        self.plan, self.folder, self.console, self.sources, self.seat = plan, folder, console, sources, seat
        self.work: Work = work(plan)
        self.device, self.ranks, self.first = seat.device, seat.ranks, seat.ranks.rank == 0
        self.order: Order = run_order(plan.seed, self.work, sources[0], self.ranks.size)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)

    def train(self, head: TargetHead, supply: Supply, quantum: QuantumOf = of_one_rank) -> Executed:
        """Train from the folder's latest checkpoint, or from the start, and export.

        `quantum`: what an optimizer step is over several ranks; one rank knows it from its batches.
        """
        if self.first:
            clean(self.folder.checkpoints)
        latest = find_latest(self.folder.checkpoints)
        resumed = None if latest is None else _Resumed(latest, load(latest))
        settings = _resolved(self.work.train, self.order)
        state = _start(self.plan, settings, self.order) if resumed is None else _resume(self.plan, resumed, settings)
        draft = self._draft(head, resumed)
        optimizer = Optimizer(draft, settings)
        if resumed is not None:
            check_optimizer(resumed.checkpoint, optimizer.masters, resumed.folder)
            optimizer.load(resumed.checkpoint.optimizer)
            self.say(f"resuming at step {state.step} from {resumed.folder}")
        over = of_one_rank if self.ranks.size == 1 else quantum  # the batches know of samples that were lost
        kernels = kernels_of(self.plan)
        step = _step(draft, head, settings.eagle3, kernels)
        training = Training(settings, step, optimizer, supply.feed, self.ranks, over)
        # the same figures whatever is trained on: cross-entropy per supervised row
        evaluating = _step(draft, head, attrs.evolve(settings.eagle3, reduction="tokens", lk=None), kernels)
        evaluations = [self._evaluation(i, found, supply, evaluating) for i, found in enumerate(self.work.evaluations)]

        def record(reached: State, progress: Progress) -> None:
            self._save(reached, draft, optimizer, progress)
            if self.first:  # the others come here before it is saved
                supply.covered(reached.step)

        return self._finish(self._train(training, evaluations, state, record))

    def say(self, text: str) -> None:
        """A line for the user, from rank 0."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draft(self, head: TargetHead, resumed: _Resumed | None) -> Eagle3Draft:
        """The draft with float32 weights on the device, the target's embedding, and the vocabulary map.

        The map is made at the first start only; after that it is the checkpoint's. A draft that starts from a file has
        the file's.
        """
        settings = self.work.train.draft
        if resumed is not None:
            settings = attrs.evolve(settings, weights=None)
        draft = first_draft(settings, self.plan.seed, Path(self.plan.base))
        with torch.no_grad():
            draft.embed_tokens.weight.copy_(head.embedding_VH)
            if resumed is not None:
                restore(resumed.checkpoint, draft, resumed.folder)
                check(draft.d2t.numpy(), draft.t2d.numpy(), settings.draft_vocab_size, settings.vocab_size)
            elif settings.weights is not None:
                self.say(f"draft weights and vocabulary map: {settings.weights}")
            else:
                made = vocab_map(count(self.sources[0].documents, settings.vocab_size), settings.draft_vocab_size)
                draft.d2t.copy_(torch.from_numpy(made.d2t))
                draft.t2d.copy_(torch.from_numpy(made.t2d))
                self.say(
                    f"draft vocabulary: {settings.draft_vocab_size:,} of {settings.vocab_size:,} ids, "
                    f"{made.coverage:.1%} of the supervised tokens"
                )
        return draft.to(self.device)

    def _evaluation(self, number: int, found: EvaluationWork, supply: Supply, step: Step) -> Evaluation:
        prepared, decay = self.sources[number + 1], self.work.train.eagle3.position_decay
        packs = -(-len(prepared.documents) // found.settings.batch_documents)
        window = Window(prepared.report.supervised, packs)

        def run(done: int) -> dict[str, float]:
            return evaluate(step, supply.held_out(number, done), window, decay, self.ranks)

        return Evaluation(found.name, found.settings.every, run)

    def _train(
        self, training: Training, evaluations: list[Evaluation], state: State, record: Callable[[State, Progress], None]
    ) -> Outcome:
        metrics = MetricsFile(self.folder.metrics, state.step) if self.first else Unwritten()
        progress = open_progress(self.plan.name, state.max_steps, self.console)
        records = Records(
            metrics, progress, evaluations, lambda reached: record(reached, progress), self.work.checkpoint.every
        )
        try:
            with self.seat.stop as stop:
                return train(training, records, state, stop)
        finally:
            progress.close()
            metrics.close()

    def _save(self, state: State, draft: Eagle3Draft, optimizer: Optimizer, progress: Progress) -> None:
        if not self.first:
            return
        checkpoint = Checkpoint(self.plan, state, draft_tensors(draft, optimizer.masters), optimizer.state())
        written = save(self.folder.checkpoints, checkpoint, self.work.checkpoint.keep)
        progress.note(f"step {state.step}: saved {written}")

    def _finish(self, outcome: Outcome) -> Executed:
        if not self.first:
            return Executed(outcome.state, outcome.interrupted, self.folder.checkpoints, ())
        latest = find_latest(self.folder.checkpoints)
        assert latest is not None, "training ends with a save"
        checkpoint = self.folder.checkpoints / latest.name
        if outcome.interrupted:
            self.say(f"interrupted at step {outcome.state.step}, saved in {checkpoint}; run it again to go on")
            return Executed(outcome.state, True, checkpoint, ())
        formats = dict.fromkeys(settings.format for settings in self.work.exports)
        exports = tuple(export(checkpoint, format, self.folder.export(format)) for format in formats)
        for written in exports:
            self.say(f"exported {written}")
        return Executed(outcome.state, False, checkpoint, exports)


def _resolved(train: TrainSettings, order: Order) -> TrainSettings:
    """The settings with what preparation fixes: how many steps there are, and the horizon of the schedule."""
    return attrs.evolve(train, max_steps=order.total_steps, schedule_steps=train.schedule_steps or order.total_steps)


def _start(plan: Plan, settings: TrainSettings, order: Order) -> State:
    assert settings.schedule_steps is not None
    return State(
        step=0,
        epoch=0,
        position=0,
        max_steps=order.total_steps,
        schedule_steps=settings.schedule_steps,
        tokens=0,
        supervised=0,
        nonfinite=0,
        best_score=None,
        best_step=None,
        digest=plan.digest,
        metrics={},
    )


def _resume(plan: Plan, resumed: _Resumed, settings: TrainSettings) -> State:
    state = resumed.checkpoint.state
    if state.schedule_steps != settings.schedule_steps:
        raise CheckpointError(
            f"{resumed.folder} was trained on a schedule of {state.schedule_steps} steps, and this run's has "
            f"{settings.schedule_steps}: its learning rates differ. Set Train(schedule_steps={state.schedule_steps}), "
            "or give this recipe another output_dir"
        )
    assert settings.max_steps is not None
    return attrs.evolve(state, max_steps=settings.max_steps, digest=plan.digest)


def _step(draft: Eagle3Draft, head: TargetHead, settings: Eagle3Settings, kernels: Kernels) -> Step:
    """A micro-step of `draft`, normalised by the window of its optimizer step."""

    micro_step = Eagle3Step(draft, head.head_VH, settings, head.logits, kernels)

    def step(batch: Batch, window: Window) -> StepResult:
        return micro_step(batch, window.supervised, window.micro_steps)

    return step
