"""In: samples as they are planned, captured, trained and covered. Out: `Ledger`, what is where, across crashes.

SQLite in WAL mode with synchronous FULL: what `commit` returned from survives a loss of power. One transaction is open
at a time, and any number of changes share its commit. It holds references, never tensors. Rows reach from the step
that a checkpoint covers to a window ahead of the trainer; there are never as many as a run has samples.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs

from specforge.runtime.control.message import CONVERTER, Captured, Given, Reference, Turn
from specforge.runtime.data.agenda import CaptureBatch
from specforge.runtime.data.hole import Hole

STATES = ("waiting", "leased", "committed", "acknowledged", "lost")
SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    step INTEGER NOT NULL, slot INTEGER NOT NULL, document INTEGER NOT NULL,
    rank INTEGER NOT NULL, micro INTEGER NOT NULL, place INTEGER NOT NULL, batch TEXT NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL, reference TEXT, bytes INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (step, slot, document)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batches ON samples (batch);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# rows that a checkpoint has not covered yet but whose features went at the acknowledgement say nothing any more
KEPT_STEPS = 64


@attrs.frozen
class Row:
    """A sample's row, as tests and `/status` look at it."""

    step: int
    slot: int
    document: int
    rank: int
    micro: int
    place: int
    batch: str
    state: str
    attempts: int
    reference: Reference | None
    reason: str


class Ledger:
    """The ledger in the file `path`. One process opens it: the controller."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Commit and close."""
        self.commit()
        self._db.close()

    def commit(self) -> None:
        """Make every change so far durable, in one transaction."""
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    def rewind(self, step: int, digest: str, usable: Callable[[Reference], bool] | None) -> list[Reference]:
        """Go back to optimizer step `step`, where the checkpoint stands. Returns the references that still hold.

        `usable`: whether a reference's features are still there; None: they are captured again, all of them. Nothing
        of another plan (by its `digest`) is kept.
        """
        self._begin()
        self._db.execute("DELETE FROM samples WHERE step < ?", (step,))
        kept: list[Reference] = []
        if usable is None or self._fact("digest") != digest:
            self._db.execute("DELETE FROM samples")
        else:
            found = self._db.execute(
                "SELECT step, slot, document, reference FROM samples WHERE state IN ('committed', 'acknowledged')"
            ).fetchall()
            for *key, text in found:
                reference = _reference(text)
                if usable(reference):
                    kept.append(reference)
                    self._set("state = 'committed'", key)
                else:
                    self._set("state = 'waiting', reference = NULL, bytes = 0", key)
            self._db.execute("UPDATE samples SET state = 'waiting' WHERE state = 'leased'")
        self._record(digest=digest, covered=str(step))
        self.commit()
        return kept

    def plan(self, batches: Iterable[CaptureBatch]) -> list[str]:
        """Add the samples of these batches, unless they are there. Returns the names of those that wait for capture."""
        self._begin()
        waiting = []
        for batch in batches:
            self._db.executemany(
                "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting', 0, NULL, 0, '')",
                [(s.step, s.slot, s.document, s.rank, s.micro, s.place, batch.name) for s in batch.samples],
            )
            if self._count("batch = ? AND state = 'waiting'", (batch.name,)):
                waiting.append(batch.name)
        return waiting

    def lease(self, batch: CaptureBatch) -> dict[int, int]:
        """Mark what waits of a batch as leased. Returns the attempt number, from 1, of each document."""
        self._begin()
        self._db.execute(
            "UPDATE samples SET state = 'leased', attempts = attempts + 1 WHERE batch = ? AND state = 'waiting'",
            (batch.name,),
        )
        return dict(
            self._db.execute(
                "SELECT document, attempts FROM samples WHERE batch = ? AND state = 'leased'", (batch.name,)
            )
        )

    def give_back(self, batch: str) -> None:
        """A lease came to nothing: its samples wait again."""
        self._begin()
        self._db.execute("UPDATE samples SET state = 'waiting' WHERE batch = ? AND state = 'leased'", (batch,))

    def store(self, batch: CaptureBatch, captured: Sequence[Captured]) -> None:
        """A lease's results: samples are committed, or lost for good."""
        self._begin()
        places = {s.key: (s.step, s.slot, s.document) for s in batch.samples}
        for found in captured:
            reference = found.reference
            if reference is None:
                self._set("state = 'lost', reason = ?", places[found.key], found.fault)
            else:
                text = json.dumps(CONVERTER.unstructure(reference))
                self._set("state = 'committed', reference = ?, bytes = ?", places[found.key], text, reference.bytes)

    def turn(self, turn: Turn) -> tuple[dict[str, int], tuple[Given, ...], tuple[Hole, ...]]:
        """How many samples of a turn are in each state; those committed and lost, in the order they are trained."""
        rows = self.rows(turn)
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.state] = counts.get(row.state, 0) + 1
        given = tuple(Given(r.document, r.reference) for r in rows if r.state == "committed" and r.reference)
        return counts, given, tuple(Hole(r.document, r.reason) for r in rows if r.state == "lost")

    def acknowledge(self, turn: Turn, *, keep: bool) -> list[Reference]:
        """A turn was trained. Returns what may leave the store: all of it, or nothing with `keep`."""
        self._begin()
        where = "step = ? AND slot = ? AND state = 'committed'"
        key = (turn.step, turn.slot)
        texts = self._db.execute(f"SELECT reference FROM samples WHERE {where}", key).fetchall()
        gone = "" if keep else ", reference = NULL, bytes = 0"
        self._db.execute(f"UPDATE samples SET state = 'acknowledged'{gone} WHERE {where}", key)
        if not keep:
            self._db.execute("DELETE FROM samples WHERE step < ? AND state = 'acknowledged'", (turn.step - KEPT_STEPS,))
        return [] if keep else [_reference(text) for (text,) in texts]

    def cover(self, step: int) -> list[Reference]:
        """A checkpoint holds the first `step` optimizer steps: their rows go. Returns what may leave the store."""
        self._begin()
        texts = self._db.execute(
            "SELECT reference FROM samples WHERE step < ? AND reference IS NOT NULL", (step,)
        ).fetchall()
        self._db.execute("DELETE FROM samples WHERE step < ?", (step,))
        self._record(covered=str(step))
        return [_reference(text) for (text,) in texts]

    @property
    def covered(self) -> int:
        """The step of the last checkpoint that it was told of."""
        return int(self._fact("covered") or 0)

    def counts(self) -> dict[str, int]:
        """Rows in each state."""
        found = dict(self._db.execute("SELECT state, COUNT(*) FROM samples GROUP BY state"))
        return {state: found.get(state, 0) for state in STATES}

    def resident_bytes(self) -> int:
        """Bytes of the features that are in the store."""
        (total,) = self._db.execute("SELECT COALESCE(SUM(bytes), 0) FROM samples").fetchone()
        return int(total)

    def rows(self, turn: Turn) -> list[Row]:
        """The samples of a turn in the order they are trained."""
        found = self._db.execute(
            "SELECT * FROM samples WHERE step = ? AND slot = ? ORDER BY rank, micro, place",
            (turn.step, turn.slot),
        )
        names = [column[0] for column in found.description]
        rows = (dict(zip(names, values, strict=True)) for values in found)
        return [
            Row(
                **{k: v for k, v in row.items() if k not in ("reference", "bytes")},
                reference=_reference(row["reference"]) if row["reference"] else None,
            )
            for row in rows
        ]

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")

    def _set(self, change: str, key: Sequence[int], *values: object) -> None:
        self._db.execute(f"UPDATE samples SET {change} WHERE step = ? AND slot = ? AND document = ?", (*values, *key))

    def _count(self, where: str, values: tuple[object, ...]) -> int:
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM samples WHERE {where}", values).fetchone()
        return int(count)

    def _fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _record(self, **facts: str) -> None:
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())


def _reference(text: str) -> Reference:
    return CONVERTER.structure(json.loads(text), Reference)
