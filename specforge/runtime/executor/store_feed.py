"""In: a run's controller and its store. Out: `Stored`: features that other processes captured, taken turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from specforge.runtime.control.client import ControlClient
from specforge.runtime.control.message import Turn
from specforge.runtime.data.agenda import TRAINING, Agenda
from specforge.runtime.data.batch import Batch, Features
from specforge.runtime.data.fed import Fed
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.ahead import Ahead
from specforge.runtime.executor.supply import Packer
from specforge.runtime.store.store import Store


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
        """A turn's packs, whole."""
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
    """The training feed: what the order says, captured ahead by others."""

    turns: Turns
    prepared: Prepared
    device: torch.device
    holes: tuple[Hole, ...] = ()

    def step(self, step: int) -> Sequence[Batch]:
        fed = self.turns.take(
            Turn(step, TRAINING), self.turns.agenda.order.step(step), Packer(self.prepared, self.device)
        )
        self.holes = fed.holes
        return fed.batches

    def lost(self) -> Sequence[Hole]:
        return self.holes

    def done(self, step: int) -> None:
        self.turns.done(Turn(step, TRAINING))

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
        """All documents in file order; a pack is acknowledged when the next one is asked for."""
        turns = self.feed.turns
        agenda = turns.agenda
        packer = Packer(self.held_out_sources[evaluation], self.feed.device)
        for slot, pack in zip(agenda.slots(evaluation), agenda.held_out[evaluation].packs, strict=True):
            turn = Turn(step - 1, slot)
            yield turns.take(turn, [pack], packer)
            turns.done(turn)

    def covered(self, step: int) -> None:
        """Features that a checkpoint covers leave the store."""
        self.feed.turns.covered(step)
