"""In: a ledger's file, opened again and again. Out: what is where after each; no tensor, no row too many."""

import sqlite3

import pytest

from specforge.runtime.control.ledger import KEPT_STEPS, Ledger
from specforge.runtime.control.message import Captured, Reference, TensorShape, Turn
from specforge.runtime.data.agenda import Agenda
from specforge.runtime.data.order import Order

pytestmark = pytest.mark.null


def len_of(document):
    return 5


AGENDA = Agenda(Order(seed=1, documents=16, batch_documents=2, accumulation=2, epochs=50), 4, (len_of,))
BATCHES = [batch for group in AGENDA.batches(0) for batch in group]


def stored(batch, generation=1):
    shape = (TensorShape("aux_TC", "bfloat16", (5, 96)), TensorShape("last_TH", "bfloat16", (5, 32)))
    return [Captured(s.key, Reference("features", s.key, generation, 1280, shape)) for s in batch.samples]


def opened(path, step=0, usable=None):
    ledger = Ledger(path / "ledger.sqlite")
    return ledger, ledger.rewind(step, "digest", usable)


def states(ledger, step):
    return [row.state for row in ledger.rows(Turn(step))]


def through(ledger, batch):
    ledger.plan([batch])
    ledger.lease(batch)
    ledger.store(batch, stored(batch))


def test_a_sample_goes_from_waiting_to_acknowledged(tmp_path):
    ledger, _ = opened(tmp_path)
    batch = BATCHES[0]
    assert ledger.plan([batch]) == [batch.name]
    assert states(ledger, 0) == ["waiting"] * 4
    assert ledger.lease(batch) == dict.fromkeys(batch.documents, 1)
    assert states(ledger, 0) == ["leased"] * 4
    *found, last = stored(batch)
    ledger.store(batch, [*found, Captured(last.key, None, "not finite")])
    counts, given, holes = ledger.turn(Turn(0))
    assert counts == {"committed": 3, "lost": 1}
    assert [(hole.document, hole.reason) for hole in holes] == [(batch.samples[-1].document, "not finite")]
    assert [g.reference for g in given] == [c.reference for c in found]
    assert ledger.resident_bytes() == 3 * 1280
    assert ledger.acknowledge(Turn(0), keep=False) == [c.reference for c in sorted(found, key=lambda c: _document(c))]
    assert sorted(states(ledger, 0)) == ["acknowledged"] * 3 + ["lost"]
    assert ledger.resident_bytes() == 0


def _document(captured):
    return int(captured.key.split(".")[2])


def test_rows_carry_the_place_of_each_sample(tmp_path):
    ledger, _ = opened(tmp_path)
    ledger.plan(BATCHES[:1])
    rows = ledger.rows(Turn(0))
    places = [(row.rank, row.micro, row.place) for row in rows]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert [row.document for row in rows] == [d for pack in AGENDA.order.step(0) for d in pack]
    assert {row.batch for row in rows} == {BATCHES[0].name}


def test_what_was_committed_survives_and_what_was_not_does_not(tmp_path):
    ledger, _ = opened(tmp_path)
    through(ledger, BATCHES[0])
    ledger.commit()
    through(ledger, BATCHES[1])
    other = sqlite3.connect(tmp_path / "ledger.sqlite")
    assert other.execute("SELECT DISTINCT step FROM samples").fetchall() == [(0,)], "one transaction is open"
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


def test_rewound_with_prompts_everything_is_captured_again(tmp_path):
    ledger, _ = opened(tmp_path)
    for batch in BATCHES[:3]:
        through(ledger, batch)
    ledger.acknowledge(Turn(0), keep=False)
    ledger.close()
    again, kept = opened(tmp_path, step=1)
    assert kept == []
    assert again.covered == 1
    assert again.plan(BATCHES[1:3]) == [batch.name for batch in BATCHES[1:3]]


def test_rewound_with_features_what_is_still_there_is_kept(tmp_path):
    ledger, _ = opened(tmp_path)
    for batch in BATCHES[:4]:
        through(ledger, batch)
    assert ledger.acknowledge(Turn(0), keep=True) == []
    ledger.acknowledge(Turn(1), keep=True)
    ledger.plan([BATCHES[4]])
    ledger.lease(BATCHES[4])
    ledger.close()
    gone = BATCHES[2].samples[1].key
    again, kept = opened(tmp_path, step=1, usable=lambda reference: reference.key != gone)
    assert states(again, 0) == []
    assert states(again, 1) == ["committed"] * 4, "acknowledged, but the checkpoint does not hold it"
    assert sorted(states(again, 2)) == ["committed"] * 3 + ["waiting"]
    assert states(again, 4) == ["waiting"] * 4
    assert len(kept) == 11
    assert again.plan(BATCHES[1:5]) == [BATCHES[2].name, BATCHES[4].name]
    assert set(again.lease(BATCHES[2]).values()) == {2}, "the second attempt writes another object"


def test_nothing_of_another_plan_is_kept(tmp_path):
    ledger, _ = opened(tmp_path)
    through(ledger, BATCHES[0])
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite")
    assert again.rewind(0, "another", lambda _: True) == []
    assert again.counts()["committed"] == 0


def test_a_covered_step_leaves_no_rows(tmp_path):
    ledger, _ = opened(tmp_path)
    for batch in BATCHES[:3]:
        through(ledger, batch)
    ledger.acknowledge(Turn(0), keep=True)
    released = ledger.cover(1)
    assert {r.key for r in released} == {s.key for s in BATCHES[0].samples}
    assert (states(ledger, 0), ledger.covered) == ([], 1)
    assert sum(ledger.counts().values()) == 8


def test_without_checkpoints_rows_do_not_grow_with_the_run(tmp_path):
    ledger, _ = opened(tmp_path)
    for step, batch in enumerate(BATCHES):
        through(ledger, batch)
        ledger.acknowledge(Turn(step), keep=False)
    assert len(BATCHES) > 2 * KEPT_STEPS
    assert sum(ledger.counts().values()) == 4 * (KEPT_STEPS + 1)


def test_no_control_record_holds_a_tensor(tmp_path):
    """What is stored of a sample does not grow with its tokens: names, dtypes and shapes."""
    ledger, _ = opened(tmp_path)
    through(ledger, BATCHES[0])
    ledger.commit()
    kinds = {type(value) for row in ledger._db.execute("SELECT * FROM samples") for value in row}
    assert kinds <= {int, str, type(None)}, "no blob"
    (longest,) = ledger._db.execute("SELECT MAX(LENGTH(reference)) FROM samples").fetchone()
    assert longest < 400
