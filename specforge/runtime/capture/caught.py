"""In: nothing. Out: `Caught`, the features of documents and which of these have none; `Capturing`, what gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from specforge.runtime.data.batch import Features
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.prepared import Prepared


@attrs.frozen(eq=False)
class Caught:
    """Features by document index, and the documents that have none."""

    features: dict[int, Features]
    holes: tuple[Hole, ...]


class Capturing(Protocol):
    """Features on demand: of the target's forward, or recorded before. `documents`: how many are worth one call."""

    @property
    def documents(self) -> int: ...

    def capture(self, prepared: Prepared, indices: Sequence[int]) -> Caught:
        """The features of these documents."""
        ...
