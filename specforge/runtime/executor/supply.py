"""In: nothing. Out: `Supply`: where a trainer's features come from, whatever the topology; `Packer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs
import torch

from specforge.runtime.data.batch import Batch, Features, batch
from specforge.runtime.data.fed import Fed
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.order import Order
from specforge.runtime.data.pack import Pack
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.train.loop import Feed, Quantum, Window


class Supply(Protocol):
    """Features for training and evaluation."""

    @property
    def feed(self) -> Feed:
        """The training feed."""
        ...

    def held_out(self, evaluation: int, step: int) -> Iterator[Fed]:
        """The packs of evaluation number `evaluation` (from 0), after `step` optimizer steps; in order."""
        ...

    def covered(self, step: int) -> None:
        """A checkpoint holds the first `step` optimizer steps."""
        ...


def whole_step(order: Order, prepared: Prepared, step: int) -> Quantum:
    """What an optimizer step is over all ranks: the order and the documents are the same on each."""
    packs = order.whole_step(step)
    inside = [prepared.documents[i] for pack in packs for i in pack]
    window = Window(sum(d.supervised for d in inside), sum(map(bool, packs)))
    return Quantum(packs, sum(len(d.tokens) for d in inside), window)


@attrs.frozen(eq=False)
class Packer:
    """Lays documents with their features end to end on the trainer's device."""

    prepared: Prepared
    device: torch.device

    def fed(self, packs: Sequence[Sequence[int]], found: dict[int, Features], holes: Sequence[Hole]) -> Fed:
        """The packs (document indices) as batches, without lost samples."""
        lost = {hole.document for hole in holes}
        left = [[i for i in pack if i not in lost] for pack in packs]
        inside = {i for pack in packs for i in pack}
        return Fed(
            tuple(self._batch(pack, found) for pack in left),
            tuple(hole for hole in holes if hole.document in inside),
        )

    def _batch(self, indices: Sequence[int], found: dict[int, Features]) -> Batch:
        documents = tuple(self.prepared.documents[i] for i in indices)
        return batch(Pack(documents), [found[i] for i in indices], self.device)
