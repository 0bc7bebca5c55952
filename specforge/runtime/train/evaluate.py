"""In: a step and held-out batches. Out: teacher-forced metrics; sums over all packs come before any ratio."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specforge.runtime.data.batch import Batch
from specforge.runtime.train.loop import Step, Window
from specforge.runtime.train.metrics import Sums, from_vector, ratios, total, vector
from specforge.runtime.train.parallel import ALONE, Ranks


@torch.no_grad()
def evaluate(
    step: Step, batches: Iterable[Batch], window: Window, position_decay: float, ranks: Ranks = ALONE
) -> dict[str, float]:
    """`ratios` over the batches of all ranks, and their "supervised" rows, from `window`, on every rank.

    One transfer from the device, at the end. `step` reduces by tokens, so how documents are packed changes nothing.
    `batches`: this rank's, at least one, which may be empty.
    """
    sums: Sums | None = None
    for batch in batches:
        found = step(batch, window).sums
        sums = found if sums is None else total([sums, found])
    assert sums is not None, "a prepared source has documents"
    summed = ranks.total(vector(sums)).cpu()
    return {**ratios(from_vector(summed), position_decay), "supervised": window.supervised}
