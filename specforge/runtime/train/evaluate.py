"""In: a step and held-out batches. Out: teacher-forced metrics; sums over all packs come before any ratio."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specforge.runtime.data.fed import Fed
from specforge.runtime.train.loop import Step, Window
from specforge.runtime.train.metrics import Sums, from_vector, ratios, total, vector


@torch.no_grad()
def evaluate(step: Step, packs: Iterable[Fed], window: Window, position_decay: float) -> dict[str, float]:
    """`ratios` over all packs, and their "supervised" rows. One transfer from the device, at the end.

    `window` is what all documents come to. Those that were lost in capture are counted as "lost", where there are any,
    and nothing is normalised by them. `step` reduces by tokens, so how documents are packed changes nothing. Raises
    ValueError where every document was lost.
    """
    sums: Sums | None = None
    supervised, lost, reason = 0, 0, ""
    for fed in packs:
        for batch in fed.batches:
            found = step(batch, window).sums
            sums = found if sums is None else total([sums, found])
            supervised += batch.pack.supervised
        lost += len(fed.holes)
        reason = fed.holes[0].reason if fed.holes else reason
    if sums is None:
        raise ValueError(f"every held-out document was lost in capture: {reason}; evaluate on other rows")
    told = from_vector(vector(sums).cpu())
    if lost:
        told["ploss_K"] *= window.supervised / supervised
    measured = {**ratios(told, position_decay), "supervised": supervised}
    return {**measured, "lost": lost} if lost else measured
