"""In: prepared documents, their order, an engine in this process. Out: `CaptureFeed`: batches captured as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import Batch, Features, batch
from specforge.runtime.data.order import Order, capture_batches, chunks
from specforge.runtime.data.pack import Pack
from specforge.runtime.data.source import Prepared
from specforge.runtime.train.loop import Quantum, Window
from specforge.runtime.train.parallel import Ranks


@attrs.frozen(eq=False)
class Capturer:
    """The engine with its capture batches: at most `documents` of them go through the target together."""

    engine: TransformersEngine
    documents: int
    device: torch.device

    def capture(self, prepared: Prepared, indices: Sequence[int]) -> dict[int, Features]:
        """The features of these documents by index."""
        found: dict[int, Features] = {}
        documents = prepared.documents
        for some in capture_batches(tuple(indices), lambda i: len(documents[i].tokens), self.documents):
            found.update(zip(some, self.engine.capture([prepared.documents[i] for i in some]), strict=True))
        return found

    def batch(self, prepared: Prepared, indices: Sequence[int], found: dict[int, Features]) -> Batch:
        """These documents laid end to end, with what was captured of them."""
        return batch(Pack(tuple(prepared.documents[i] for i in indices)), [found[i] for i in indices], self.device)


@attrs.define(eq=False)
class CaptureFeed:
    """The training feed of `rank`: what `order` says, captured just before the first step that needs it.

    Small documents are captured for several steps at once: `held` are those of the steps still to come.
    """

    capturer: Capturer
    prepared: Prepared
    order: Order
    held: dict[int, dict[int, Features]] = attrs.Factory(dict)
    rank: int = 0

    def step(self, step: int) -> list[Batch]:
        if step not in self.held:
            self.held = self._captured(step)
        found = self.held.pop(step)
        return [self.capturer.batch(self.prepared, indices, found) for indices in self.order.step(step, self.rank)]

    def quantum(self, step: int, batches: Sequence[Batch]) -> Quantum:
        """What the step is over all ranks: the order and the documents are the same on each."""
        packs, documents = self.order.whole_step(step), self.prepared.documents
        inside = [documents[i] for pack in packs for i in pack]
        window = Window(sum(d.supervised for d in inside), sum(map(bool, packs)))
        return Quantum(packs, sum(len(d.tokens) for d in inside), window)

    def place(self, step: int) -> tuple[int, int]:
        return divmod(step, self.order.steps_per_epoch)

    def describe(self, document: int) -> str:
        return f"row {self.prepared.rows[document]} of {self.prepared.report.path}"

    def _captured(self, step: int) -> dict[int, dict[int, Features]]:
        together = self.order.captured_with(step, self.capturer.documents, self.rank)
        found = self.capturer.capture(self.prepared, [i for indices in together.values() for i in indices])
        return {other: {i: found[i] for i in indices} for other, indices in together.items() if other >= step}


def held_out(capturer: Capturer, prepared: Prepared, documents: int, ranks: Ranks) -> Iterator[Batch]:
    """This rank's share of all documents in file order, `documents` to a pack, captured as they are read.

    Packs are dealt in turn; every rank has as many, the last of which may be empty.
    """
    packs = chunks(tuple(range(len(prepared.documents))), documents)
    for first in range(0, len(packs), ranks.size):
        indices = packs[first + ranks.rank] if first + ranks.rank < len(packs) else ()
        yield capturer.batch(prepared, indices, capturer.capture(prepared, indices))
