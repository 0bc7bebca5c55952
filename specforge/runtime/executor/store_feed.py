"""In: a run's controller and its store. Out: `Stored`: features that other processes captured, taken turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from specforge.runtime.control.client import ControlClient
from specforge.runtime.control.message import Turn
from specforge.runtime.data.agenda import Agenda
from specforge.runtime.data.batch import Batch, Features
from specforge.runtime.data.fed import Fed
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.ahead import Ahead
from specforge.runtime.executor.supply import Packer, whole_step
from specforge.runtime.store.store import Store
from specforge.runtime.train.loop import Quantum


@attrs.frozen(eq=False)
class Fetched:
    """A turn's features on the host by document, and what was lost of it."""

    features: dict[int, Features]
    holes: tuple[Hole, ...]


class Turns:
    """The way from a turn to its features: while one is trained, the next is waited for and read.

    `patience_s`: the longest wait for a turn while nothing changes.
    """

    def __init__(self, control: ControlClient, store: Store, agenda: Agenda, patience_s: float) -> None:
        self.agenda = agenda
        self._control, self._store, self._patience_s = control, store, patience_s
        self._ahead = Ahead(self._fetch, lambda turn: agenda.after(*turn))

    def take(self, turn: Turn, packs: Sequence[Sequence[int]], packer: Packer) -> Fed:
        """A turn's packs, whole. Where they hold no document, nobody is asked for them."""
        if not any(packs):
            return packer.fed(packs, {}, ())
        fetched = self._ahead.take((turn.step, turn.slot))
        return packer.fed(packs, fetched.features, fetched.holes)

    def done(self, turn: Turn) -> None:
        """It was trained: one acknowledgement; what nobody needs any more leaves the store."""
        self._store.remove(self._control.acknowledge(turn))

    def covered(self, step: int) -> None:
        """A checkpoint holds the first `step` optimizer steps."""
        self._store.remove(self._control.cover(step))

    def _fetch(self, turn: tuple[int, int]) -> Fetched:
        taken = self._control.take(Turn(*turn), self._patience_s)
        read = {given.document: Features(**self._store.get(given.reference)) for given in taken.given}
        return Fetched(read, taken.holes)


@attrs.define(eq=False)
class StoreFeed:
    """The training feed of `rank`: what the order says, captured ahead by others."""

    turns: Turns
    prepared: Prepared
    device: torch.device
    rank: int = 0
    holes: tuple[Hole, ...] = ()

    def step(self, step: int) -> Sequence[Batch]:
        packs = self.turns.agenda.order.step(step, self.rank)
        fed = self.turns.take(Turn(step, self.rank), packs, Packer(self.prepared, self.device))
        self.holes = fed.holes
        return fed.batches

    def quantum(self, step: int, batches: Sequence[Batch]) -> Quantum:
        """What the step is over all ranks."""
        return whole_step(self.turns.agenda.order, self.prepared, step)

    def lost(self) -> Sequence[Hole]:
        return self.holes

    def done(self, step: int) -> None:
        if any(self.turns.agenda.order.step(step, self.rank)):
            self.turns.done(Turn(step, self.rank))

    def place(self, step: int) -> tuple[int, int]:
        return divmod(step, self.turns.agenda.order.steps_per_epoch)

    def describe(self, document: int) -> str:
        return self.prepared.describe(document)


@attrs.frozen(eq=False)
class Stored:
    """A supply whose features come through the store. `held_out_sources[i]`: the documents of evaluation i."""

    feed: StoreFeed
    held_out_sources: tuple[Prepared, ...]

    def held_out(self, evaluation: int, step: int) -> Iterator[Fed]:
        """This rank's packs of all documents in file order, each acknowledged when the next one is asked for.

        Every rank has as many, the last of which may be empty.
        """
        turns, rank = self.feed.turns, self.feed.rank
        agenda, ranks = turns.agenda, turns.agenda.order.ranks
        packer = Packer(self.held_out_sources[evaluation], self.feed.device)
        slots, packs = agenda.slots(evaluation), agenda.held_out[evaluation].packs
        for place in range(rank, -(-len(packs) // ranks) * ranks, ranks):
            if place >= len(packs):
                yield packer.fed([()], {}, ())
                continue
            turn = Turn(step - 1, slots[place])
            yield turns.take(turn, [packs[place]], packer)
            turns.done(turn)

    def covered(self, step: int) -> None:
        """Features that a checkpoint covers leave the store."""
        self.feed.turns.covered(step)
