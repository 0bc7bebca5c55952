"""In: a seed and how many documents there are. Out: `Order`: which documents make each optimizer step, before capture.

Everything is a pure function of (seed, epoch, step): no global generator, no state to save but the step's number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import attrs
import numpy as np

T = TypeVar("T")


@attrs.frozen
class Order:
    """The order of a training run over `documents` documents.

    An epoch is a permutation of all documents, cut into optimizer steps of `accumulation` micro-steps of
    `batch_documents` documents each. The last step of an epoch takes what is left: perhaps fewer micro-steps and a
    shorter last one. It is a real step, normalised by its own supervised rows; no document waits for the next epoch.
    `max_steps` ends the run early and never prolongs it.
    """

    seed: int
    documents: int
    batch_documents: int
    accumulation: int
    epochs: int
    max_steps: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.documents < 1:
            raise ValueError("there are no documents to train on; the report of the source says why rows were dropped")
        least = {"seed": 0, "batch_documents": 1, "accumulation": 1, "epochs": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be at least 1, or None for all epochs")

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.documents // (self.batch_documents * self.accumulation))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        whole = self.epochs * self.steps_per_epoch
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def epoch(self, step: int) -> int:
        """The epoch (from 0) that optimizer step `step` (from 0) belongs to."""
        return step // self.steps_per_epoch

    def step(self, step: int) -> tuple[tuple[int, ...], ...]:
        """Document indices of every micro-step of optimizer step `step` (from 0). IndexError beyond the run."""
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} is not in this run of {self.total_steps} steps")
        return chunks(self._documents(step), self.batch_documents)

    def captured_with(self, step: int, capture_documents: int) -> dict[int, tuple[int, ...]]:
        """The optimizer steps that are captured together with `step`, itself included, and their documents.

        As many whole steps of one epoch as fit `capture_documents`, at least one. Which they are does not depend on
        where a run stops, so a resumed or prolonged run captures every document in the same company.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        together = max(1, capture_documents // (self.batch_documents * self.accumulation))
        first = place - place % together
        places = range(first, min(first + together, self.steps_per_epoch))
        return {epoch * self.steps_per_epoch + p: self._documents(epoch * self.steps_per_epoch + p) for p in places}

    def _documents(self, step: int) -> tuple[int, ...]:
        epoch, place = divmod(step, self.steps_per_epoch)
        size = self.batch_documents * self.accumulation
        return _permutation(self.seed, epoch, self.documents)[place * size : (place + 1) * size]


def chunks(documents: tuple[T, ...], size: int) -> tuple[tuple[T, ...], ...]:
    """Cut into runs of `size`, in order; the last may be shorter.

    A step's documents into micro-steps, and the documents captured together into forwards of the target (size = the
    capture's batch_documents): the rows of a capture batch never change company.
    """
    return tuple(documents[i : i + size] for i in range(0, len(documents), size))


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, documents: int) -> tuple[int, ...]:
    """Sorting by raw draws of Philox: NumPy promises their stream, not that of Generator.permutation."""
    raw = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(documents)
    return tuple(np.argsort(raw, kind="stable").tolist())
