"""In: what happened to the rows of a source. Out: `Report`: as text for a terminal, as a dict for JSON."""

from __future__ import annotations

from typing import Any

import attrs
import cattrs

SHOWN_ROWS = 3
SHOWN_TEXT = 600


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 row, 1,200 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(text: str) -> str:
    """The beginning of a rendered row, indented as the lines of a message are."""
    text = text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}... ({len(text):,} characters)"
    return text.replace("\n", "\n  ")


@attrs.frozen
class Dropped:
    """Rows dropped for one reason. `rows`: the first few row numbers; `example`: what was wrong with the first."""

    reason: str
    count: int
    rows: tuple[int, ...]
    example: str


@attrs.frozen
class Report:
    """What a preparation kept. `tokens` and `supervised` (rows that carry loss) are those of the kept documents.

    `truncated` counts kept documents that lost tokens to max_length. `dropped` is sorted by count.
    Of a mix `parts` are the reports of what it mixes, where rows were dropped and cut; the counts are of its documents.
    """

    path: str
    rows: int
    kept: int
    dropped: tuple[Dropped, ...]
    tokens: int
    supervised: int
    truncated: int
    parts: tuple[Report, ...] = ()

    @property
    def share(self) -> float:
        """Supervised share of the tokens; 0 without tokens."""
        return self.supervised / self.tokens if self.tokens else 0.0

    def text(self) -> str:
        """A few lines for a terminal."""
        if self.parts:
            supervised = f"{self.supervised:,} supervised ({self.share:.1%})"
            mixed = f"{self.path}: {counted(self.kept, 'document')} an epoch"
            lines = [*(part.text() for part in self.parts), mixed, f"  {counted(self.tokens, 'token')}, {supervised}"]
            return "\n".join(lines)
        lines = [
            f"{self.path}: {counted(self.rows, 'row')}, {self.kept:,} kept, {self.rows - self.kept:,} dropped",
            f"  {counted(self.tokens, 'token')}, {self.supervised:,} supervised ({self.share:.1%})"
            + (f", {counted(self.truncated, 'document')} truncated" if self.truncated else ""),
        ]
        return "\n".join(lines + [f"  dropped {line}" for line in self.reasons()])

    def reasons(self) -> list[str]:
        """One line for each reason: count, reason, first row numbers, what was wrong with the first of them."""
        return [_line(d) for d in self.dropped]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `Report.from_dict` gives an equal report back."""
        return {**cattrs.unstructure(self), "share": round(self.share, 6)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Report:
        """The report of `to_dict`."""
        return cattrs.structure({k: v for k, v in value.items() if k != "share"}, cls)


def _line(dropped: Dropped) -> str:
    more = ", ..." if dropped.count > len(dropped.rows) else ""
    where = f"row{'s' if dropped.count > 1 else ''} {', '.join(map(str, dropped.rows))}{more}"
    return f"{dropped.count:,}: {dropped.reason} ({where})" + (f": {dropped.example}" if dropped.example else "")


class Tally:
    """Counts dropped rows of `path` by reason while it is read. With `strict` no row may be dropped."""

    def __init__(self, path: str, strict: bool) -> None:
        self._path, self._strict = path, strict
        self._dropped: dict[str, Dropped] = {}

    def drop(self, number: int, reason: str, detail: str = "") -> None:
        """Count row `number` under `reason`. Raises ValueError where `strict` is set."""
        if self._strict:
            raise ValueError(
                f"{self._path}: row {number}: {reason}{f': {detail}' if detail else ''}; "
                "correct the row or take it out, or set strict=False, which drops and counts such rows"
            )
        old = self._dropped.get(reason, Dropped(reason, 0, (), detail))
        rows = (*old.rows, number)[:SHOWN_ROWS]
        self._dropped[reason] = attrs.evolve(old, count=old.count + 1, rows=rows)

    def dropped(self) -> tuple[Dropped, ...]:
        """The counts, most frequent first; equal ones by reason."""
        return tuple(sorted(self._dropped.values(), key=lambda d: (-d.count, d.reason)))
