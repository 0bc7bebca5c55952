"""In: an order, the held-out sources, the size of a capture batch. Out: `Agenda`: what is captured when, before it is.

A turn is what a trainer's rank asks for at once: slot r of a step is the training documents of rank r, each slot after
those one pack of an evaluation that comes after the step; packs are dealt to the ranks in turn. A capture batch is the
documents of one forward of the target, the unit of lease, retry and recapture: so its rows never change company.
Everything is a function of the order: no torch, no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import attrs

from specforge.runtime.data.order import Order, capture_batches, chunks


@attrs.frozen
class Sample:
    """A document in its place: pack `micro` of `rank` in turn (`step`, `slot`); `place` in the pack."""

    step: int
    slot: int
    rank: int
    micro: int
    place: int
    document: int

    @property
    def key(self) -> str:
        """Names the sample's features in a store."""
        return f"{self.step}.{self.slot}.{self.document}"


@attrs.frozen
class CaptureBatch:
    """One forward of the target: `documents` of source `source` (0: training, i: evaluation i - 1) in this order.

    `samples`: what is kept of it. The others were trained already, or lie beyond the run; they keep it company.
    """

    name: str
    source: int
    documents: tuple[int, ...]
    samples: tuple[Sample, ...]


@attrs.frozen
class HeldOut:
    """An evaluation every `every` steps and at the end, over `documents` documents, `packed` to a pack."""

    every: int
    documents: int
    packed: int

    @property
    def packs(self) -> tuple[tuple[int, ...], ...]:
        return chunks(tuple(range(self.documents)), self.packed)


@attrs.frozen
class Agenda:
    """Everything a run captures. `capture_documents`: documents of a capture batch.

    `lengths[i]`: the tokens of each document of source i (see CaptureBatch).
    """

    order: Order
    capture_documents: int
    lengths: tuple[Callable[[int], int], ...] = attrs.field(eq=False)
    held_out: tuple[HeldOut, ...] = ()

    def rank(self, slot: int) -> int:
        """The rank that takes the turns of this slot."""
        ranks = self.order.ranks
        if slot < ranks:
            return slot
        return next((slot - self.slots(i).start) % ranks for i in range(len(self.held_out)) if slot in self.slots(i))

    def batches(self, start: int) -> Iterator[tuple[CaptureBatch, ...]]:
        """From optimizer step `start` on, in the order of need: what is captured together, then what comes after."""
        planned = start
        for step in range(start, self.order.total_steps):
            if step >= planned:
                groups = [
                    self.order.captured_with(step, self.capture_documents, rank) for rank in range(self.order.ranks)
                ]
                planned = max(groups[0]) + 1
                yield tuple(chain.from_iterable(self._training(group, start, r) for r, group in enumerate(groups)))
            for number, held_out in enumerate(self.held_out):
                if due(step + 1, held_out.every, self.order.total_steps):
                    for slot, pack in zip(self.slots(number), held_out.packs, strict=True):
                        yield self._evaluation(number, (step, slot), pack)

    def slots(self, evaluation: int) -> range:
        """The slots of this evaluation's packs, in order, in any step after which it is due."""
        counts = [len(held_out.packs) for held_out in self.held_out[: evaluation + 1]]
        return range(self.order.ranks + sum(counts[:-1]), self.order.ranks + sum(counts))

    def after(self, step: int, slot: int) -> tuple[int, int] | None:
        """The turn that this one's rank takes next; None after its last. A rank takes no turn without documents."""
        total, rank = self.order.total_steps, self.rank(slot)
        for other in range(step, total):
            if other > step and any(self.order.step(other, rank)):
                return other, rank
            for number, held_out in enumerate(self.held_out):
                if due(other + 1, held_out.every, total):
                    slots = self.slots(number)
                    later = [s for s in slots[rank :: self.order.ranks] if other > step or s > slot]
                    if later:
                        return other, later[0]
        return None

    def _training(self, group: dict[int, tuple[int, ...]], start: int, rank: int) -> tuple[CaptureBatch, ...]:
        """A rank's batches of steps that are captured together, without those of which nothing is to be trained."""
        places = {}
        for step in group:
            if start <= step < self.order.total_steps:
                for micro, documents in enumerate(self.order.step(step, rank)):
                    for place, document in enumerate(documents):
                        # a group is of one epoch, in which a document comes once
                        places[document] = Sample(step, rank, rank, micro, place, document)
        together = tuple(document for documents in group.values() for document in documents)
        made = self._batches(f"{min(group)}.{rank}", 0, together, places)
        return tuple(batch for batch in made if batch.samples)

    def _evaluation(self, number: int, turn: tuple[int, int], pack: Sequence[int]) -> tuple[CaptureBatch, ...]:
        (step, slot), rank = turn, self.rank(turn[1])
        places = {document: Sample(step, slot, rank, 0, place, document) for place, document in enumerate(pack)}
        return self._batches(f"{step}.{slot}", number + 1, tuple(pack), places)

    def _batches(
        self, name: str, source: int, documents: tuple[int, ...], places: dict[int, Sample]
    ) -> tuple[CaptureBatch, ...]:
        return tuple(
            CaptureBatch(f"{name}/{i}", source, some, tuple(places[d] for d in some if d in places))
            for i, some in enumerate(capture_batches(documents, self.lengths[source], self.capture_documents))
        )


def due(done: int, every: int, total: int) -> bool:
    """Whether an evaluation comes after optimizer step number `done` (from 1) of `total`."""
    return done == total or done % every == 0


def turns(batches: Sequence[CaptureBatch]) -> set[tuple[int, int]]:
    """The turns that these batches are part of."""
    return {(s.step, s.slot) for s in chain.from_iterable(batch.samples for batch in batches)}
