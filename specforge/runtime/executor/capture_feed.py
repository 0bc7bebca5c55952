"""In: prepared documents, their order, an engine in this process. Out: `CaptureFeed`: batches captured as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import Batch, batch
from specforge.runtime.data.order import Order, chunks
from specforge.runtime.data.pack import Pack
from specforge.runtime.data.source import Prepared


@attrs.frozen(eq=False)
class Capturer:
    """The engine with its capture batches: `documents` of one pack go through the target together, never more."""

    engine: TransformersEngine
    documents: int
    device: torch.device

    def batch(self, prepared: Prepared, indices: Sequence[int]) -> Batch:
        """Capture these documents and lay them end to end. A capture batch never crosses a pack."""
        features = []
        for some in chunks(tuple(indices), self.documents):
            features += self.engine.capture([prepared.documents[i] for i in some])
        return batch(Pack(tuple(prepared.documents[i] for i in indices)), features, self.device)


@attrs.frozen(eq=False)
class CaptureFeed:
    """The training feed: what `order` says, captured just before its step."""

    capturer: Capturer
    prepared: Prepared
    order: Order

    def step(self, step: int) -> list[Batch]:
        return [self.capturer.batch(self.prepared, indices) for indices in self.order.step(step)]

    def place(self, step: int) -> tuple[int, int]:
        return divmod(step, self.order.steps_per_epoch)

    def describe(self, document: int) -> str:
        return f"row {self.prepared.rows[document]} of {self.prepared.report.path}"


def held_out(capturer: Capturer, prepared: Prepared, documents: int) -> Iterator[Batch]:
    """All documents in file order, `documents` to a pack: an evaluation's batches, captured as they are read."""
    for indices in chunks(tuple(range(len(prepared.documents))), documents):
        yield capturer.batch(prepared, indices)
