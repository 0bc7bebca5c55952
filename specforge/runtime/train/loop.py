"""In: batches in recorded order, a step, an optimizer. Out: a trained draft; metrics, evaluations and checkpoints.

The host never waits for the device inside a step: what it reads of a step (finite flags, sums) is copied while the
next one runs, and is settled one step late, or before a log line is needed by a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import torch

from specforge.runtime.checkpoint.state import State
from specforge.runtime.data.batch import Batch
from specforge.runtime.data.hole import Hole
from specforge.runtime.step.result import StepResult
from specforge.runtime.train.interrupt import Stop
from specforge.runtime.train.metrics import (
    MetricsFile,
    Sums,
    Unwritten,
    finite_or_none,
    from_vector,
    ratios,
    total,
    vector,
)
from specforge.runtime.train.optimizer import Optimizer
from specforge.runtime.train.parallel import ALONE, Ranks
from specforge.runtime.train.progress import Progress
from specforge.runtime.train.schedule import learning_rate
from specforge.settings import TrainSettings


class NonFiniteError(ValueError):
    """More losses, gradients or features were not finite than the budget allows; names their samples."""


@attrs.frozen
class Window:
    """What an optimizer step normalises by: its supervised rows and its micro-steps, over all ranks."""

    supervised: int
    micro_steps: int


@attrs.frozen
class Quantum:
    """The packs of an optimizer step over all ranks, rank after rank: the documents of each, and all their tokens."""

    packs: tuple[tuple[int, ...], ...]
    rows: int
    window: Window


class Feed(Protocol):
    """The batches of a run, in recorded order."""

    def step(self, step: int) -> Sequence[Batch]:
        """This rank's micro-steps of optimizer step `step` (from 0), features and all; as many on every rank."""
        ...

    def lost(self) -> Sequence[Hole]:
        """The samples of the last `step` that were lost in capture: they are in none of its batches."""
        ...

    def done(self, step: int) -> None:
        """Optimizer step `step` was trained: its features are not needed any more."""
        ...

    def place(self, step: int) -> tuple[int, int]:
        """(epoch, position in it) of optimizer step `step`, both from 0."""
        ...

    def describe(self, document: int) -> str:
        """How the user finds the document with this index: "row 12 of chats.jsonl"."""
        ...


Step = Callable[[Batch, Window], StepResult]
QuantumOf = Callable[[int, Sequence[Batch]], Quantum]


def of_one_rank(step: int, batches: Sequence[Batch]) -> Quantum:
    """The whole of a step that one rank trains."""
    packs = tuple(tuple(document.index for document in batch.pack.documents) for batch in batches)
    window = Window(sum(batch.pack.supervised for batch in batches), sum(map(bool, packs)))
    return Quantum(packs, sum(batch.pack.rows for batch in batches), window)


@attrs.frozen(eq=False)
class Training:
    """What is trained. `settings` have their max_steps and schedule_steps. `step` computes a micro-step.

    `quantum(step, batches)` tells from this rank's batches, or from the order, what the step is over all `ranks`.
    """

    settings: TrainSettings
    step: Step
    optimizer: Optimizer
    feed: Feed
    ranks: Ranks = ALONE
    quantum: QuantumOf = of_one_rank


@attrs.frozen(eq=False)
class Evaluation:
    """A measurement every `every` steps and at the end; `run`, told the steps done, gives `ratios` and more."""

    name: str
    every: int
    run: Callable[[int], dict[str, float]]


@attrs.frozen(eq=False)
class Records:
    """Where results go. `save` is called every `save_every` steps (0: not), at a best evaluation and at the end."""

    metrics: MetricsFile | Unwritten
    progress: Progress
    evaluations: Sequence[Evaluation]
    save: Callable[[State], None]
    save_every: int


@attrs.frozen
class Outcome:
    """Where training stopped; `interrupted`: a signal asked for it, and the state was saved."""

    state: State
    interrupted: bool


@attrs.frozen(eq=False)
class _Flight:
    """A launched step: what the device will tell, and what the host knows already.

    `told` holds grad_norm, applied, a flag per pack whose loss is not finite, how many ranks were asked to stop, then
    the sums: over all ranks, but the sums only where the step is logged.
    """

    step: int
    quantum: Quantum
    rate: float
    told: torch.Tensor
    ready: torch.cuda.Event | None


def train(training: Training, records: Records, state: State, interrupt: Stop) -> Outcome:
    """Train from `state` to max_steps, or to the end of the step in which `interrupt` was requested.

    Several ranks agree on a request: all stop after the step that tells all of them of it.

    Raises NonFiniteError when the budget of skipped updates is spent: the last checkpoint stands.
    """
    return _Loop(training, records, state, interrupt).run()


class _Loop:
    def __init__(self, training: Training, records: Records, state: State, interrupt: Stop) -> None:
        self.training, self.records, self.state, self.interrupt = training, records, state, interrupt
        self.flight: _Flight | None = None
        self.agreed = False
        self.began = self.logged = time.monotonic()
        self.first = state.step
        self.waited = 0.0
        self.rows = 0
        self.supervised, self.kept, self.warned = 0.0, 0.0, False

    def run(self) -> Outcome:
        while self.state.step < self.state.max_steps:
            step = self.state.step
            flight = self._launch(step)
            self._settle()
            self.flight = flight
            self._advance(step, flight)
            self._count_lost(step)
            if flight is not None and flight.ready is None:  # on a CPU the step is over already
                self._settle()
            if self._boundary():
                return Outcome(self.state, interrupted=True)
        return Outcome(self.state, interrupted=False)

    def _launch(self, step: int) -> _Flight | None:
        """Start a step. None: every sample of it was lost in capture, and there is nothing to learn from."""
        training, start = self.training, time.monotonic()
        batches = training.feed.step(step)
        self.waited += time.monotonic() - start
        quantum = training.quantum(step, batches)
        if not quantum.window.supervised:
            return None
        losses, sums = [], []
        for batch in batches:
            result = training.step(batch, quantum.window)
            result.loss.backward()
            training.optimizer.accumulate()
            losses.append(result.loss.detach())
            sums.append(result.sums)
        notes = training.ranks.reduce(training.optimizer.gradients(), self._notes(torch.stack(losses), quantum))
        rate = learning_rate(step, training.settings)
        update = training.optimizer.step(rate, notes[:-1].sum() == 0)
        summed = vector(total(sums))
        if self._logs(step):
            summed = training.ranks.total(summed)
        told = [update.grad_norm[None], update.finite[None], notes, summed]
        host, ready = _to_host(torch.cat([part.to(torch.float64) for part in told]))
        return _Flight(step, quantum, rate, host, ready)

    def _notes(self, losses: torch.Tensor, quantum: Quantum) -> torch.Tensor:
        """float32 [packs + 1]: 1 at this rank's packs with a loss that is not finite; last, whether to stop."""
        ranks, mine = self.training.ranks, len(losses)
        assert len(quantum.packs) == mine * ranks.size, "every rank has as many micro-steps"
        notes = torch.zeros(len(quantum.packs) + 1, device=losses.device)
        notes[ranks.rank * mine : (ranks.rank + 1) * mine] = ~torch.isfinite(losses)
        notes[-1] = float(self.interrupt.requested)
        return notes

    def _logs(self, step: int) -> bool:
        done = step + 1
        return done % self.training.settings.log_every == 0 or done == self.state.max_steps

    def _advance(self, step: int, flight: _Flight | None) -> None:
        feed = self.training.feed
        feed.done(step)
        epoch, position = feed.place(step + 1)
        self.state = attrs.evolve(
            self.state,
            step=step + 1,
            epoch=epoch,
            position=position,
            tokens=self.state.tokens + (flight.quantum.rows if flight else 0),
            supervised=self.state.supervised + (flight.quantum.window.supervised if flight else 0),
        )

    def _count_lost(self, step: int) -> None:
        """Count and name the samples of a step that were lost in capture."""
        feed, budget = self.training.feed, self.training.settings.nonfinite_budget
        holes = feed.lost()
        if not holes:
            return
        self.state = attrs.evolve(self.state, lost=self.state.lost + len(holes))
        samples = "; ".join(f"{feed.describe(hole.document)}: {hole.reason}" for hole in holes)
        text = f"step {step + 1}: lost in capture: {samples}"
        if self.state.lost > budget:
            raise NonFiniteError(
                f"{text}. {self.state.lost} samples were lost, Train(nonfinite_budget={budget}) allows no more. Remove "
                "these rows, capture in another dtype, or raise nonfinite_budget"
            )
        self.records.progress.note(f"{text}. Skipped ({self.state.lost} so far)")

    def _settle(self) -> None:
        """Read what the launched step told: count a skipped update, log the step if it is due."""
        flight, self.flight = self.flight, None
        if flight is None:
            return
        if flight.ready is not None:
            flight.ready.synchronize()
        packs = len(flight.quantum.packs)
        norm, applied = flight.told[:2].tolist()
        *bad, asked = flight.told[2 : 3 + packs].tolist()
        self.agreed = asked > 0
        if not applied:
            self._count_nonfinite(flight, bad)
        self.rows += flight.quantum.rows
        sums = from_vector(flight.told[3 + packs :])
        self.supervised += float(sums["rows_K"].sum())
        self.kept += float(sums["kept_K"].sum())
        done, steps = flight.step + 1, self.state.max_steps
        if self._logs(flight.step):
            self._log(flight, norm, sums)
            self._warn_of_vocabulary(done)
        spent = time.monotonic() - self.began
        self.records.progress.step(done, spent / (done - self.first) * (steps - done))

    def _count_nonfinite(self, flight: _Flight, flags: list[float]) -> None:
        self.state = attrs.evolve(self.state, nonfinite=self.state.nonfinite + 1)
        settings, feed = self.training.settings, self.training.feed
        # a finite loss with a non-finite gradient does not tell which micro-step it came from
        packs = flight.quantum.packs
        bad = [documents for documents, flag in zip(packs, flags, strict=True) if flag] or packs
        samples = ", ".join(feed.describe(index) for documents in bad for index in documents)
        what = "loss" if any(flags) else "gradient norm"
        text = f"step {flight.step + 1}: the {what} is not finite; the samples are {samples}"
        if self.state.nonfinite > settings.nonfinite_budget:
            raise NonFiniteError(
                f"{text}. {self.state.nonfinite} updates were skipped, Train(nonfinite_budget="
                f"{settings.nonfinite_budget}) allows no more. Remove these rows, lower the learning rate "
                f"({flight.rate:.3g} in this step), or raise nonfinite_budget"
            )
        self.records.progress.note(f"{text}. Update skipped ({self.state.nonfinite} so far)")

    def _warn_of_vocabulary(self, step: int) -> None:
        """Say once that nothing was learnt so far: a row whose teacher's token the draft has not adds no loss."""
        if self.warned or self.kept or not self.supervised:
            return
        self.warned = True
        size = self.training.settings.draft.draft_vocab_size
        self.records.progress.note(
            f"warning: step {step}: of {self.supervised:,.0f} supervised rows so far (over all TTT steps) none has a "
            f"teacher whose token is among the draft vocabulary's {size:,}: the loss is 0 and nothing is learnt. Raise "
            f"Draft(vocab_size={size}), or train on replies that this target wrote"
        )

    def _log(self, flight: _Flight, norm: float, sums: Sums) -> None:
        now = time.monotonic()
        seconds, waited, rows = now - self.logged, self.waited, self.rows
        self.logged, self.waited, self.rows = now, 0.0, 0
        epoch, _ = self.training.feed.place(flight.step)
        metrics = ratios(sums, self.training.settings.eagle3.position_decay)
        line = {
            "step": flight.step + 1,
            "epoch": epoch,
            **metrics,
            "learning_rate": flight.rate,
            "grad_norm": norm,
            "tokens": flight.quantum.rows,
            "supervised": flight.quantum.window.supervised,
            "nonfinite": self.state.nonfinite,
            "seconds": seconds,
            "tokens_per_s": rows / seconds if seconds else 0.0,
            "waiting_share": waited / seconds if seconds else 0.0,
        }
        self.records.metrics.write(line)
        self.records.progress.metrics(line)
        self.state = attrs.evolve(self.state, metrics={k: finite_or_none(v) for k, v in metrics.items()})

    def _boundary(self) -> bool:
        """Evaluate and save where it is due after a step. Returns whether to stop: read once, so that a stop saves."""
        state, records = self.state, self.records
        stopping = self.interrupt.requested if self.training.ranks.size == 1 else self.agreed
        last = state.step == state.max_steps
        due = [e for e in records.evaluations if last or state.step % e.every == 0]
        saving = last or stopping or (records.save_every > 0 and state.step % records.save_every == 0)
        if not due and not saving:
            return False
        self._settle()
        for evaluation in due:
            saving |= self._evaluate(evaluation)
        if saving:
            records.save(self.state)
        return stopping

    def _evaluate(self, evaluation: Evaluation) -> bool:
        """Log an evaluation. Returns whether it is the best yet: the first evaluation of the recipe decides."""
        start = time.monotonic()
        found = evaluation.run(self.state.step)
        seconds = time.monotonic() - start
        self.logged += seconds  # training's tokens/s leave evaluation out
        self.began += seconds
        step, score = self.state.step, found["simulated_acceptance_length"]
        self.records.metrics.write({"step": step, "evaluation": evaluation.name, **found, "seconds": seconds})
        self.records.progress.note(
            f"step {step}: {evaluation.name} loss {found['loss']:.4f}  acc {found['acc']:.3f}  "
            f"simulated acceptance length {score:.3f} (no bonus token)"
        )
        best = self.state.best_score
        if evaluation is not self.records.evaluations[0] or not (score > (-1.0 if best is None else best)):
            return False
        self.state = attrs.evolve(self.state, best_score=score, best_step=step)
        return True


def _to_host(vector: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    if vector.device.type != "cuda":
        return vector, None
    host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
    host.copy_(vector, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return host, ready
