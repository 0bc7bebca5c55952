"""In: nothing. Out: `Fed`, what a trainer is fed: batches, and which samples are missing from them."""

from __future__ import annotations

import attrs

from specforge.runtime.data.batch import Batch
from specforge.runtime.data.hole import Hole


@attrs.frozen(eq=False)
class Fed:
    """Batches with their features, and the samples that were lost in capture: they are in no batch."""

    batches: tuple[Batch, ...]
    holes: tuple[Hole, ...]
