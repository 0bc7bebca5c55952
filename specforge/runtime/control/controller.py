"""In: an agenda, a ledger. Out: `Controller`: leases for workers, turns for the trainer. The ledger's only owner.

It plans a window of the agenda at a time: capture batches are leased in the order in which they are trained, until as
many samples are captured or being captured as the high watermark says, and again from the low one on. What the trainer
waits for is always leased, so no watermark can stop a run. Nothing here knows of HTTP, threads or torch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from specforge.runtime.control.ledger import Ledger
from specforge.runtime.control.limits import Limits
from specforge.runtime.control.message import (
    Commit,
    Failed,
    Lease,
    Reference,
    Status,
    Taken,
    Turn,
    Wanted,
)
from specforge.runtime.data.agenda import Agenda, CaptureBatch, turns
from specforge.runtime.data.prepared import Prepared


class ControlError(ValueError):
    """A request that the control plane refuses; or the run has failed, and this is the first cause."""


@attrs.define
class _Leased:
    """A lease that is out: the samples it is for, to whom, and until when (seconds of the controller's clock)."""

    batch: CaptureBatch
    keys: frozenset[str]
    worker: str
    until_s: float


class Controller:
    """Hands out work from optimizer step `start` on. `sources[i]` holds the documents of source i of the agenda.

    `keep_until_covered`: features stay until a checkpoint covers them, else they go at the acknowledgement.
    """

    def __init__(
        self,
        ledger: Ledger,
        agenda: Agenda,
        sources: tuple[Prepared, ...],
        limits: Limits,
        start: int,
        keep_until_covered: bool,
    ) -> None:
        self._ledger, self._agenda, self._sources, self._limits = ledger, agenda, sources, limits
        self._keep = keep_until_covered
        self._ahead: Iterator[tuple[CaptureBatch, ...]] = agenda.batches(start)
        self._waiting: deque[CaptureBatch] = deque()
        self._leases: dict[str, _Leased] = {}
        self._attempts: dict[str, int] = {}
        self._horizon: set[tuple[int, int]] = set()
        self._next, self._resting = start, False
        # the turn that each rank waits for, or trains
        self._awaited = {rank: Turn(start, rank) for rank in range(agenda.order.ranks)}
        self._leased_before = self._retries = self._captured = self._holes = 0
        self._failure = ""
        self.clock: Callable[[], float] = time.monotonic
        self.note: Callable[[str], None] = print

    @property
    def ledger(self) -> Ledger:
        """Whoever answers a request commits it first."""
        return self._ledger

    def lease(self, worker: str) -> Lease | None:
        """The next capture batch for `worker`; None: nothing to do now. Raises ControlError for a run that failed."""
        self.expire()
        self._check()
        batch = self._next_batch()
        if batch is None:
            return None
        attempts = self._ledger.lease(batch)
        self._leased_before += 1
        lease = f"{batch.name}#{self._leased_before}"
        keys = {sample.document: sample.key for sample in batch.samples if sample.document in attempts}
        until_s = self.clock() + self._limits.lease_s
        self._leases[lease] = _Leased(batch, frozenset(keys.values()), worker, until_s)
        documents = self._sources[batch.source].documents
        return Lease(
            id=lease,
            batch=batch.name,
            source=batch.source,
            seconds=self._limits.lease_s,
            documents=tuple(
                Wanted(i, tuple(documents[i].tokens.tolist()), keys.get(i, ""), attempts.get(i, 0))
                for i in batch.documents
            ),
        )

    def commit(self, commit: Commit) -> bool:
        """Take a lease's results. False: it had run out, and the results are to be discarded."""
        self.expire()
        leased = self._leases.pop(commit.lease, None)
        if leased is None:
            return False
        if sorted(found.key for found in commit.captured) != sorted(leased.keys):
            given = ", ".join(found.key for found in commit.captured)
            self._again(leased, f"{leased.worker} gave {given or 'nothing'}, not {', '.join(sorted(leased.keys))}")
            return False
        self._ledger.store(leased.batch, commit.captured)
        self._captured += sum(c.reference is not None for c in commit.captured)
        self._holes += sum(c.reference is None for c in commit.captured)
        self._attempts.pop(leased.batch.name, None)
        return True

    def fail(self, failed: Failed) -> None:
        """A lease came to nothing. Its batch is leased again; after too many attempts the run has failed."""
        leased = self._leases.pop(failed.lease, None)
        if leased is not None:
            self._again(leased, failed.error)

    def take(self, turn: Turn) -> Taken:
        """A turn's samples, where all of them are captured or lost. Raises ControlError for a turn that is not next."""
        self.expire()
        self._check()
        if not self._next <= turn.step < self._agenda.order.total_steps:
            raise ControlError(
                f"the trainer asks for optimizer step {turn.step}, and the ledger stands at {self._next} of "
                f"{self._agenda.order.total_steps}; start the run again, it goes on from its latest checkpoint"
            )
        while (turn.step, turn.slot) not in self._horizon and self._plan():
            pass
        counts, given, holes = self._ledger.turn(turn)
        missing = {state: n for state, n in counts.items() if state in ("waiting", "leased")}
        if not counts or "acknowledged" in counts:
            what = "was trained already" if counts else "is not on the agenda"
            raise ControlError(f"turn {turn.slot} of optimizer step {turn.step} {what}; start the run again")
        self._awaited[self._agenda.rank(turn.slot)] = turn
        if missing:
            out = ", ".join(f"{found.batch.name} with {found.worker}" for found in self._leases.values())
            what = ", ".join(f"{n} {state}" for state, n in missing.items())
            return Taken(False, f"{what} of {sum(counts.values())} samples; leases: {out or 'none'}")
        return Taken(True, given=given, holes=holes)

    def acknowledge(self, turn: Turn) -> list[Reference]:
        """A turn was trained. Returns what leaves the store now."""
        self._horizon.discard((turn.step, turn.slot))
        if turn.slot < self._agenda.order.ranks:
            self._next = turn.step  # an evaluation after this step may still be taken
        return self._ledger.acknowledge(turn, keep=self._keep)

    def cover(self, step: int) -> list[Reference]:
        """A checkpoint holds the first `step` optimizer steps. Returns what leaves the store now."""
        return self._ledger.cover(step)

    def expire(self) -> None:
        """Give the batches of leases that ran out to others."""
        now = self.clock()
        for lease in [lease for lease, leased in self._leases.items() if leased.until_s <= now]:
            leased = self._leases.pop(lease)
            self._again(leased, f"{leased.worker} did not answer within {self._limits.lease_s:g} s")

    def status(self) -> Status:
        """Where the run stands."""
        return Status(
            next_step=min(turn.step for turn in self._awaited.values()),
            covered_step=self._ledger.covered,
            total_steps=self._agenda.order.total_steps,
            samples=self._ledger.counts(),
            holes=self._holes,
            retries=self._retries,
            captured=self._captured,
            resident_bytes=self._ledger.resident_bytes(),
            leases={lease: leased.worker for lease, leased in self._leases.items()},
            failure=self._failure,
        )

    def _check(self) -> None:
        if self._failure:
            raise ControlError(self._failure)

    def _next_batch(self) -> CaptureBatch | None:
        """What the trainer waits for first, else the next of the agenda where the watermarks allow it."""
        awaited = {(turn.step, turn.slot) for turn in self._awaited.values()}
        for batch in self._waiting:
            if awaited & turns([batch]):
                self._waiting.remove(batch)
                return batch
        if self._rests():
            return None
        while not self._waiting and self._plan():
            pass
        return self._waiting.popleft() if self._waiting else None

    def _rests(self) -> bool:
        counts, limits = self._ledger.counts(), self._limits
        untrained = counts["leased"] + counts["committed"]
        self._resting = untrained > (limits.low_samples if self._resting else limits.high_samples - 1)
        full = limits.high_bytes is not None and self._ledger.resident_bytes() >= limits.high_bytes
        return self._resting or full

    def _plan(self) -> bool:
        """Add the next part of the agenda to the ledger. False: there is no more."""
        batches = next(self._ahead, None)
        if batches is None:
            return False
        self._horizon |= turns(batches)
        waiting = set(self._ledger.plan(batches))
        self._waiting.extend(batch for batch in batches if batch.name in waiting)
        return True

    def _again(self, leased: _Leased, error: str) -> None:
        name = leased.batch.name
        self._ledger.give_back(name)
        self._retries += 1
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self.note(f"capture batch {name}, attempt {self._attempts[name]}: {error}")
        if self._attempts[name] >= self._limits.attempts:
            self._failure = self._failure or (
                f"capture batch {name} failed {self._attempts[name]} times, the last time: {error}. The logs of the "
                "capture servers say more; start the run again when the cause is gone"
            )
        else:
            self._waiting.appendleft(leased.batch)
