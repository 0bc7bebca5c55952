"""In: a plan of one role, its run folder. Out: a trained draft: target, capture and training share a process.

Preparation, capture, step, evaluation and export, in this order; features stay on the device, and no file is synced
within a step but those of a checkpoint. With several ranks this process prepares and then launches them; rank 0 writes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import attrs
import torch
from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.checkpoint.export import export
from specforge.runtime.checkpoint.load import check_optimizer, find_latest, load, restore
from specforge.runtime.checkpoint.rotate import clean
from specforge.runtime.checkpoint.save import save
from specforge.runtime.checkpoint.state import Checkpoint, CheckpointError, State, draft_tensors
from specforge.runtime.data.batch import Batch
from specforge.runtime.data.order import Order, packed
from specforge.runtime.data.source import Prepared
from specforge.runtime.data.sources import prepare_sources
from specforge.runtime.data.vocab_map import check, count, vocab_map
from specforge.runtime.draft.eagle3 import Eagle3Draft, init_draft
from specforge.runtime.executor.capture_feed import CaptureFeed, Capturer, held_out
from specforge.runtime.executor.executed import Executed
from specforge.runtime.executor.work import EvaluationWork, Work, work
from specforge.runtime.preflight import torch_device
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.step.result import StepResult
from specforge.runtime.target import Placement, TargetModel, load_target
from specforge.runtime.train.evaluate import evaluate
from specforge.runtime.train.interrupt import Interrupt, Stop
from specforge.runtime.train.launch import launch, start_server
from specforge.runtime.train.loop import Evaluation, Outcome, Records, Step, Training, Window, train
from specforge.runtime.train.metrics import MetricsFile, Unwritten
from specforge.runtime.train.optimizer import Optimizer
from specforge.runtime.train.parallel import ALONE, Ranks, joined
from specforge.runtime.train.progress import Progress, open_progress
from specforge.settings import Eagle3Settings, SourceSettings, TrainSettings


def execute(plan: Plan, folder: RunFolder, console: Console) -> Executed:
    """Train from the folder's latest checkpoint, or from the start, and export. The caller holds the folder's lock.

    Raises, beside what training raises, RankDied where one of several ranks is killed.
    """
    (role,) = plan.roles
    if role.ranks == 1:
        return _Colocated(plan, folder, console, _Seat(ALONE, torch_device(role), Interrupt())).execute()
    start_server()
    sources = prepare_sources(plan.target, Path(plan.base), work(plan).sources, folder.prepared)
    for _, made in sources:
        console.print(made.report.text(), markup=False, highlight=False, soft_wrap=True)
    executed: Executed = launch(role.ranks, _rank, (plan, folder))
    return executed


def _rank(stop: Stop, plan: Plan, folder: RunFolder) -> Executed:
    """What every rank's process runs; sources are prepared already, and only rank 0 has something to say."""
    (role,) = plan.roles
    with joined("cpu" if role.device == "cpu" else "cuda") as ranks:
        console = Console(stderr=True) if ranks.rank == 0 else Console(quiet=True, force_terminal=False)
        seat = _Seat(ranks, torch_device(role, ranks.rank), nullcontext(stop))
        return _Colocated(plan, folder, console, seat).execute()


@attrs.frozen(eq=False)
class _Seat:
    """Where this process stands: among its ranks, on its device; `stop` tells, while it is open, whether to stop."""

    ranks: Ranks
    device: torch.device
    stop: AbstractContextManager[Stop]


@attrs.frozen(eq=False)
class _Resumed:
    """The checkpoint a run goes on from, and its folder."""

    folder: Path
    checkpoint: Checkpoint


class _Colocated:
    def __init__(self, plan: Plan, folder: RunFolder, console: Console, seat: _Seat) -> None:
        self.plan, self.folder, self.console, self.seat = plan, folder, console, seat
        self.work: Work = work(plan)
        (self.role,) = plan.roles
        self.device, self.ranks, self.first = seat.device, seat.ranks, seat.ranks.rank == 0

    def execute(self) -> Executed:
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        if self.first:
            clean(self.folder.checkpoints)
        latest = find_latest(self.folder.checkpoints)
        resumed = None if latest is None else _Resumed(latest, load(latest))
        target = load_target(self.plan.target, self._base, Placement(str(self.device), self.role.target_dtype))
        documents = self._prepare()
        order = self._order(documents[self.work.source])
        settings = _resolved(self.work.train, order)
        state = _start(self.plan, settings, order) if resumed is None else _resume(self.plan, resumed, settings)
        draft = self._draft(target, documents[self.work.source], resumed)
        optimizer = Optimizer(draft, settings)
        if resumed is not None:
            check_optimizer(resumed.checkpoint, optimizer.masters, resumed.folder)
            optimizer.load(resumed.checkpoint.optimizer)
            self._say(f"resuming at step {state.step} from {resumed.folder}")
        engine = TransformersEngine(target, self.work.capture)
        if engine.note:
            self._say(engine.note)
        capturer = Capturer(engine, self.work.capture.batch_documents, self.device)
        feed = CaptureFeed(capturer, documents[self.work.source], order, rank=self.ranks.rank)
        step = _step(draft, target, settings.eagle3)
        training = Training(settings, step, optimizer, feed, self.ranks, feed.quantum)
        # the same figures whatever is trained on: cross-entropy per supervised row
        evaluating = _step(draft, target, attrs.evolve(settings.eagle3, reduction="tokens", lk=None))
        evaluations = [self._evaluation(e, documents[e.source], capturer, evaluating) for e in self.work.evaluations]
        return self._finish(self._train(training, evaluations, state, draft))

    @property
    def _base(self) -> Path:
        return Path(self.plan.base)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _prepare(self) -> dict[SourceSettings, Prepared]:
        """Every source of the plan, tokenised now or found in the run folder."""
        found: dict[SourceSettings, Prepared] = {}
        for source, made in prepare_sources(self.plan.target, self._base, self.work.sources, self.folder.prepared):
            found[source] = made
            if self.ranks.size == 1:  # else it was said before the ranks began
                self._say(made.report.text())
        return found

    def _order(self, prepared: Prepared) -> Order:
        train, seed = self.work.train, self.plan.seed
        lengths = [len(document.tokens) for document in prepared.documents]
        return Order(
            seed=seed,
            documents=len(lengths),
            batch_documents=train.batch_documents,
            accumulation=train.accumulation,
            epochs=train.epochs,
            max_steps=train.max_steps,
            ranks=self.ranks.size,
            packs=None if train.pack_tokens is None else packed(seed, lengths, train.pack_tokens),
        )

    def _draft(self, target: TargetModel, documents: Prepared, resumed: _Resumed | None) -> Eagle3Draft:
        """The draft with float32 weights on the device, the target's embedding, and the vocabulary map.

        The map is made at the first start only; after that it is the checkpoint's.
        """
        settings = self.work.train.draft
        draft = init_draft(settings, self.plan.seed)
        with torch.no_grad():
            draft.embed_tokens.weight.copy_(target.embedding_VH)
            if resumed is not None:
                restore(resumed.checkpoint, draft, resumed.folder)
                check(draft.d2t.numpy(), draft.t2d.numpy(), settings.draft_vocab_size, settings.vocab_size)
            else:
                made = vocab_map(count(documents.documents, settings.vocab_size), settings.draft_vocab_size)
                draft.d2t.copy_(torch.from_numpy(made.d2t))
                draft.t2d.copy_(torch.from_numpy(made.t2d))
                self._say(
                    f"draft vocabulary: {settings.draft_vocab_size:,} of {settings.vocab_size:,} ids, "
                    f"{made.coverage:.1%} of the supervised tokens"
                )
        return draft.to(self.device)

    def _evaluation(self, found: EvaluationWork, documents: Prepared, capturer: Capturer, step: Step) -> Evaluation:
        packed, decay = found.settings.batch_documents, self.work.train.eagle3.position_decay
        window = Window(documents.report.supervised, -(-len(documents.documents) // packed))

        def run() -> dict[str, float]:
            batches = held_out(capturer, documents, packed, self.ranks)
            return evaluate(step, batches, window, decay, self.ranks)

        return Evaluation(found.name, found.settings.every, run)

    def _train(self, training: Training, evaluations: list[Evaluation], state: State, draft: Eagle3Draft) -> Outcome:
        metrics = MetricsFile(self.folder.metrics, state.step) if self.first else Unwritten()
        progress = open_progress(self.plan.name, state.max_steps, self.console)

        def record(reached: State) -> None:
            self._save(reached, draft, training.optimizer, progress)

        records = Records(metrics, progress, evaluations, record, self.work.checkpoint.every)
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
            self._say(f"interrupted at step {outcome.state.step}, saved in {checkpoint}; run it again to go on")
            return Executed(outcome.state, True, checkpoint, ())
        formats = dict.fromkeys(settings.format for settings in self.work.exports)
        exports = tuple(export(checkpoint, format, self.folder.export(format)) for format in formats)
        for written in exports:
            self._say(f"exported {written}")
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


def _step(draft: Eagle3Draft, target: TargetModel, settings: Eagle3Settings) -> Step:
    """A micro-step of `draft`, normalised by the window of its optimizer step."""

    micro_step = Eagle3Step(draft, target.head_VH, settings)

    def step(batch: Batch, window: Window) -> StepResult:
        return micro_step(batch, window.supervised, window.micro_steps)

    return step
