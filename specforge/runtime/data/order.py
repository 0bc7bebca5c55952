"""In: a seed and the documents. Out: `Order`: which documents make each micro-step of each rank, before capture.

Everything is a pure function of (seed, epoch, step) and, where micro-steps are filled by tokens, of the documents'
lengths: no global generator, no state to save but the step's number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import attrs
import numpy as np

T = TypeVar("T")

# packs that still take documents while others are filled: enough to fill them well, few enough to be searched
OPEN_PACKS = 16


@attrs.frozen
class Order:
    """The order of a training run over `documents` documents.

    With `batch_documents`, an epoch is a permutation of all documents, cut into packs of that many. With `packs` (of
    `packed`) these are the packs, and an epoch is a permutation of them: so every epoch has the same number of steps.
    An optimizer step is the next `accumulation` x `ranks` packs, dealt to the ranks in turn: each has the same number
    of micro-steps, and where packs run out a rank's last one is empty. The last step of an epoch takes what is left. It
    is a real step, normalised by its own supervised rows; no document waits for the next epoch.
    `max_steps` ends the run early and never prolongs it. `rank_documents`: those of a step on one rank, at most.
    """

    seed: int
    documents: int
    batch_documents: int | None
    accumulation: int
    epochs: int
    max_steps: int | None = None
    ranks: int = 1
    packs: tuple[tuple[int, ...], ...] | None = attrs.field(default=None, eq=False, repr=False)
    rank_documents: int = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.documents < 1:
            raise ValueError("there are no documents to train on; the report of the source says why rows were dropped")
        least = {"seed": 0, "batch_documents": 1, "accumulation": 1, "epochs": 1, "ranks": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} is {value}; it must be at least {minimum}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be at least 1, or None for all epochs")
        if self.packs is None:
            assert self.batch_documents is not None, "documents are counted, or packs are given"
            most = self.batch_documents * self.accumulation
        else:
            most = sum(sorted((len(pack) for pack in self.packs), reverse=True)[: self.accumulation])
        object.__setattr__(self, "rank_documents", most)  # asked for in every step, and never another

    @property
    def steps_per_epoch(self) -> int:
        if self.packs is not None:
            return -(-len(self.packs) // (self.accumulation * self.ranks))
        return -(-self.documents // self._step_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        whole = self.epochs * self.steps_per_epoch
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def epoch(self, step: int) -> int:
        """The epoch (from 0) that optimizer step `step` (from 0) belongs to."""
        return step // self.steps_per_epoch

    def step(self, step: int, rank: int = 0) -> tuple[tuple[int, ...], ...]:
        """Document indices of every micro-step of optimizer step `step` on `rank` (both from 0).

        As many micro-steps on every rank; the last may be empty on some. IndexError beyond the run.
        """
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} is not in this run of {self.total_steps} steps")
        return self._dealt(step, rank)

    def whole_step(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The micro-steps of every rank, rank after rank: what a step is normalised by. IndexError beyond the run."""
        return tuple(pack for rank in range(self.ranks) for pack in self.step(step, rank))

    def captured_with(self, step: int, capture_documents: int, rank: int = 0) -> dict[int, tuple[int, ...]]:
        """The optimizer steps that `rank` captures together with `step`, itself included, and its documents of each.

        As many whole steps of one epoch as fit `capture_documents`, at least one. Which they are does not depend on
        where a run stops, so a resumed or prolonged run captures every document in the same company.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        together = max(1, capture_documents // self.rank_documents)
        first = epoch * self.steps_per_epoch + place - place % together
        steps = range(first, min(first + together, (epoch + 1) * self.steps_per_epoch))
        return {other: tuple(d for pack in self._dealt(other, rank) for d in pack) for other in steps}

    @property
    def _step_size(self) -> int:
        """Documents of an optimizer step, over all ranks."""
        assert self.batch_documents is not None
        return self.batch_documents * self.accumulation * self.ranks

    def _dealt(self, step: int, rank: int) -> tuple[tuple[int, ...], ...]:
        packs = self._packs(step)
        mine = packs[rank :: self.ranks]
        return (*mine, *((),) * (-(-len(packs) // self.ranks) - len(mine)))

    def _packs(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The packs of an optimizer step in the order in which they are dealt."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self.packs is not None:
            size = self.accumulation * self.ranks
            places = _permutation((self.seed, epoch), len(self.packs))[place * size : (place + 1) * size]
            return tuple(self.packs[i] for i in places)
        assert self.batch_documents is not None
        size = self._step_size
        documents = _permutation((self.seed, epoch), self.documents)[place * size : (place + 1) * size]
        return chunks(documents, self.batch_documents)


def packed(seed: int, lengths: Sequence[int], tokens: int) -> tuple[tuple[int, ...], ...]:
    """All documents in packs of at most `tokens` tokens; `lengths[i]` are those of document i.

    Documents come in a random order, and each goes into the first of the last OPEN_PACKS packs that has room. Raises
    ValueError for a document that fits none.
    """
    packs: list[list[int]] = []
    left: list[int] = []
    for document in _permutation((seed, 0, 1), len(lengths)):
        length = lengths[document]
        if length > tokens:
            raise ValueError(f"document {document} has {length} tokens, and a pack holds {tokens}; lower max_length")
        first = max(0, len(packs) - OPEN_PACKS)
        place = next((i for i in range(first, len(packs)) if left[i] >= length), len(packs))
        if place == len(packs):
            packs.append([])
            left.append(tokens)
        packs[place].append(document)
        left[place] -= length
    return tuple(tuple(pack) for pack in packs)


def capture_batches(
    documents: tuple[int, ...], length_of: Callable[[int], int], size: int
) -> tuple[tuple[int, ...], ...]:
    """The documents captured together, in forwards of at most `size`: where they make several, by length.

    So a padded forward holds documents of similar length. The rows of a capture batch never change company.
    """
    if len(documents) > size:
        documents = tuple(sorted(documents, key=lambda document: (length_of(document), document)))
    return chunks(documents, size)


def chunks(documents: tuple[T, ...], size: int) -> tuple[tuple[T, ...], ...]:
    """Cut into runs of `size`, in order; the last may be shorter."""
    return tuple(documents[i : i + size] for i in range(0, len(documents), size))


@lru_cache(maxsize=2)
def _permutation(entropy: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Sorting by raw draws of Philox: NumPy promises their stream, not that of Generator.permutation."""
    raw = np.random.Philox(np.random.SeedSequence(list(entropy))).random_raw(count)
    return tuple(np.argsort(raw, kind="stable").tolist())
