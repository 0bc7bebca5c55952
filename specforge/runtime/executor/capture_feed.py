"""In: prepared documents, their order, an engine in this process. Out: `InProcess`: captured as it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from specforge.runtime.capture.caught import Capturing, Caught
from specforge.runtime.capture.finite import faults
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import Batch, Features
from specforge.runtime.data.fed import Fed
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.order import Order, capture_batches, chunks
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.supply import Packer, whole_step
from specforge.runtime.train.loop import Quantum
from specforge.runtime.train.parallel import Ranks


@attrs.frozen(eq=False)
class Capturer:
    """The engine with its capture batches: at most `documents` of them go through the target together."""

    engine: TransformersEngine
    documents: int

    def capture(self, prepared: Prepared, indices: Sequence[int]) -> Caught:
        """The features of these documents; those with features that are not finite are holes."""
        found: dict[int, Features] = {}
        for some in capture_batches(tuple(indices), prepared.length, self.documents):
            found.update(zip(some, self.engine.capture([prepared.documents[i] for i in some]), strict=True))
        wrong = zip(found, faults(list(found.values())), strict=True)
        return Caught(found, tuple(Hole(document, fault) for document, fault in wrong if fault))


@attrs.define(eq=False)
class CaptureFeed:
    """The training feed of `rank`: what `order` says, captured just before the first step that needs it.

    Small documents are captured for several steps at once: `held` are those of the steps still to come.
    """

    capturer: Capturing
    prepared: Prepared
    order: Order
    device: torch.device
    held: dict[int, Caught] = attrs.Factory(dict)
    rank: int = 0
    holes: tuple[Hole, ...] = ()

    def step(self, step: int) -> Sequence[Batch]:
        if step not in self.held:
            self.held = self._captured(step)
        caught = self.held.pop(step)
        packer = Packer(self.prepared, self.device)
        fed = packer.fed(self.order.step(step, self.rank), caught.features, caught.holes)
        self.holes = fed.holes
        return fed.batches

    def quantum(self, step: int, batches: Sequence[Batch]) -> Quantum:
        """What the step is over all ranks."""
        return whole_step(self.order, self.prepared, step)

    def lost(self) -> Sequence[Hole]:
        return self.holes

    def done(self, step: int) -> None:
        return None

    def place(self, step: int) -> tuple[int, int]:
        return divmod(step, self.order.steps_per_epoch)

    def describe(self, document: int) -> str:
        return self.prepared.describe(document)

    def _captured(self, step: int) -> dict[int, Caught]:
        together = self.order.captured_with(step, self.capturer.documents, self.rank)
        caught = self.capturer.capture(self.prepared, [i for indices in together.values() for i in indices])
        return {
            other: Caught({i: caught.features[i] for i in indices}, caught.holes)
            for other, indices in together.items()
            if other >= step
        }


@attrs.frozen(eq=False)
class InProcess:
    """A supply without a store, for one of `ranks`. `held_out_sources[i]`: documents and pack size of evaluation i."""

    feed: CaptureFeed
    held_out_sources: tuple[tuple[Prepared, int], ...]
    ranks: Ranks

    def held_out(self, evaluation: int, step: int) -> Iterator[Fed]:
        """This rank's share of all documents in file order, captured as they are read.

        Packs are dealt in turn; every rank has as many, the last of which may be empty.
        """
        prepared, documents = self.held_out_sources[evaluation]
        capturer, ranks = self.feed.capturer, self.ranks
        packer = Packer(prepared, self.feed.device)
        packs = chunks(tuple(range(len(prepared.documents))), documents)
        for first in range(0, len(packs), ranks.size):
            indices = packs[first + ranks.rank] if first + ranks.rank < len(packs) else ()
            caught = capturer.capture(prepared, indices)
            yield packer.fed([indices], caught.features, caught.holes)

    def covered(self, step: int) -> None:
        """Nothing is kept of trained steps."""
