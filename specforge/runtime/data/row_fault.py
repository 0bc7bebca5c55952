"""In: a reason and a detail. Out: `RowFault`, a fault of one row: counted, or the end of a strict preparation."""

from __future__ import annotations


class RowFault(ValueError):
    """A row that cannot be used. `reason` is one of a few fixed texts, to count by; `detail` belongs to this row.

    `text`: the rendered row, where it is the marks of replies that do not stand in it.
    """

    def __init__(self, reason: str, detail: str = "", text: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.text = text
