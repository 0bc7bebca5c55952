"""In: a step and held-out batches. Out: teacher-forced metrics; sums over all packs come before any ratio."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specforge.runtime.data.fed import Fed
from specforge.runtime.train.loop import Step, Window
from specforge.runtime.train.metrics import Sums, from_vector, ratios, total, vector
from specforge.runtime.train.parallel import ALONE, Ranks


@torch.no_grad()
def evaluate(
    step: Step, packs: Iterable[Fed], window: Window, position_decay: float, ranks: Ranks = ALONE
) -> dict[str, float]:
    """`ratios` over the packs of all ranks, and their "supervised" rows, on every rank.

    One transfer from the device, at the end. `packs`: this rank's, at least one, which may be empty. `window` is what
    all documents come to. Those that were lost in capture are counted as "lost", where there are any, and nothing is
    normalised by them. `step` reduces by tokens, so how documents are packed changes nothing. Raises ValueError where
    every document was lost.
    """
    sums: Sums | None = None
    supervised = lost = 0
    for fed in packs:
        for batch in fed.batches:
            found = step(batch, window).sums
            sums = found if sums is None else total([sums, found])
            supervised += batch.pack.supervised
        lost += len(fed.holes)
    assert sums is not None, "a prepared source has documents"
    counts = torch.tensor([supervised, lost], dtype=torch.float64, device=sums["ploss_K"].device)
    *summed, supervised, lost = ranks.total(torch.cat([vector(sums), counts])).tolist()
    if not supervised:
        raise ValueError("every held-out document was lost in capture; evaluate on other rows")
    told = from_vector(torch.tensor(summed, dtype=torch.float64))
    if lost:
        told["ploss_K"] *= window.supervised / supervised
    measured = {**ratios(told, position_decay), "supervised": int(supervised)}
    return {**measured, "lost": int(lost)} if lost else measured
