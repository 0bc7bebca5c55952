"""In: nothing. Out: `Hole`, a sample that was lost in capture for good."""

from __future__ import annotations

import attrs


@attrs.frozen
class Hole:
    """The document that is missing, and why."""

    document: int
    reason: str
