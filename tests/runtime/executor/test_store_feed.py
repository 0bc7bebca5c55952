"""In: a controller at hand and a store in memory. Out: turns in order, one acknowledgement each, nothing left over."""

import numpy as np
import pytest
import torch

from specforge.runtime.control.message import Given, Taken, Turn
from specforge.runtime.data.agenda import Agenda, HeldOut
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.order import Order
from specforge.runtime.data.pack import Document
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.report import Report
from specforge.runtime.executor.store_feed import Stored, StoreFeed, Turns
from specforge.runtime.store.memory import Memory
from specforge.runtime.store.store import StoreError

pytestmark = pytest.mark.cpu
ORDER = Order(seed=1, documents=8, batch_documents=2, accumulation=2, epochs=1)


def prepared(count):
    made = tuple(Document(i, np.arange(3 + i, dtype=np.int32), np.ones(3 + i, np.bool_)) for i in range(count))
    return Prepared(made, tuple(range(1, count + 1)), Report("rows.jsonl", count, count, (), 0, 0, 0))


class Controlling:
    """The controller, where everything is captured when it is asked for; `told`: acknowledgements and covers."""

    def __init__(self, store, agenda, lost=()):
        self.store, self.agenda, self.lost, self.told, self.stored = store, agenda, lost, [], {}

    def take(self, turn, patience_s):
        packs = self.agenda.order.step(turn.step) if turn.slot == 0 else self.agenda.held_out[0].packs[turn.slot - 1 :]
        documents = [d for pack in (packs if turn.slot == 0 else packs[:1]) for d in pack]
        given = []
        for document in (d for d in documents if d not in self.lost):
            tensors = {
                "aux_TC": torch.full((3 + document, 4), float(document)),
                "last_TH": torch.full((3 + document, 2), -float(document)),
            }
            given.append(Given(document, self.store.put(f"{turn.step}.{turn.slot}.{document}", 1, tensors)))
        self.stored[turn] = tuple(g.reference for g in given)
        return Taken(True, given=tuple(given), holes=tuple(Hole(d, "NaN") for d in documents if d in self.lost))

    def acknowledge(self, turn):
        self.told.append(turn)
        return self.stored[turn]

    def cover(self, step):
        self.told.append(step)
        return ()


@pytest.fixture
def supply():
    def make(lost=()):
        store = Memory("features")
        sources = prepared(8), prepared(3)
        agenda = Agenda(ORDER, 4, tuple(s.length for s in sources), (HeldOut(every=1, documents=3, packed=2),))
        control = Controlling(store, agenda, lost)
        turns = Turns(control, store, agenda, 1.0)
        return Stored(StoreFeed(turns, sources[0], torch.device("cpu")), sources[1:]), control, store

    return make


def test_a_step_is_its_documents_in_order_with_their_features(supply):
    made, _, _ = supply()
    batches = made.feed.step(0)
    assert [tuple(d.index for d in batch.pack.documents) for batch in batches] == list(ORDER.step(0))
    for batch in batches:
        rows = [float(d.index) for d in batch.pack.documents for _ in d.tokens]
        assert batch.aux_RC[:, 0].tolist() == rows
        assert batch.last_RH[:, 1].tolist() == [-row for row in rows]
    assert made.feed.lost() == ()


def test_one_acknowledgement_per_step_and_pack_and_features_go(supply):
    made, control, store = supply()
    for step in range(ORDER.total_steps):
        made.feed.step(step)
        made.feed.done(step)
        packs = [tuple(d.index for d in fed.batches[0].pack.documents) for fed in made.held_out(0, step + 1)]
        assert packs == [(0, 1), (2,)]
    made.covered(ORDER.total_steps)
    turns = [Turn(step, slot) for step in range(ORDER.total_steps) for slot in (0, 1, 2)]
    assert control.told == [*turns, ORDER.total_steps]
    assert store.resident_bytes() == 0


def test_lost_samples_are_in_no_batch(supply):
    (first, *_), *_ = ORDER.step(0)
    made, _, _ = supply(lost=(first,))
    inside = [d.index for batch in made.feed.step(0) for d in batch.pack.documents]
    assert first not in inside
    assert len(inside) == 3
    assert [hole.document for hole in made.feed.lost()] == [first]
    assert made.feed.describe(first) == f"row {first + 1} of rows.jsonl"


def test_features_that_are_gone_are_an_error(supply):
    made, control, store = supply()
    put = store.put

    def lose(key, generation, tensors):
        reference = put(key, generation, tensors)
        store.remove([reference])
        return reference

    store.put = lose
    with pytest.raises(StoreError, match="is not in 'features'"):
        made.feed.step(0)
    assert control.told == []
