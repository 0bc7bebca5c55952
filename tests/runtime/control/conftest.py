"""In: nothing. Out: `control`: a ledger, an agenda of 4 steps and a controller over them, with a clock to set."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from specforge.runtime.control.controller import Controller
from specforge.runtime.control.ledger import Ledger
from specforge.runtime.control.limits import Limits
from specforge.runtime.control.message import Captured, Commit, Reference, TensorShape
from specforge.runtime.data.agenda import Agenda, HeldOut
from specforge.runtime.data.order import Order
from specforge.runtime.data.pack import Document
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.report import Report

LIMITS = Limits(high_samples=8, low_samples=4, lease_s=10.0, attempts=3)


def documents(count):
    made = tuple(Document(i, np.arange(3 + i, dtype=np.int32), np.ones(3 + i, np.bool_)) for i in range(count))
    return Prepared(made, tuple(range(count)), Report("rows.jsonl", count, count, (), 0, 0, 0))


def results(lease, fault=()):
    """What a worker commits for a lease; documents in `fault` are lost."""
    wanted = [w for w in lease.documents if w.key]
    return tuple(
        Captured(w.key, None, "NaN")
        if w.document in fault
        else Captured(
            w.key, Reference("s", w.key, w.generation, 100, (TensorShape("aux_TC", "float32", (len(w.tokens), 4)),))
        )
        for w in wanted
    )


@attrs.define
class Control:
    """What the tests hold."""

    folder: object
    ledger: Ledger
    controller: Controller
    now: float = 0.0
    url: str = ""

    def captured(self, **changes):
        """Lease and commit until nothing is left to do. Returns the names of the batches."""
        names = []
        while (lease := self.controller.lease("w")) is not None:
            names.append(lease.batch)
            assert self.controller.commit(Commit(lease.id, results(lease, **changes)))
        return names


@pytest.fixture
def control(tmp_path):
    def make(start=0, keep=False, limits=LIMITS, held_out=(), capture_documents=4, usable=None):
        order = Order(seed=1, documents=16, batch_documents=2, accumulation=2, epochs=1)
        sources = (documents(16), *(documents(h[1]) for h in held_out))
        lengths = tuple(source.length for source in sources)
        agenda = Agenda(order, capture_documents, lengths, tuple(HeldOut(*fields) for fields in held_out))
        ledger = Ledger(tmp_path / "ledger.sqlite")
        ledger.rewind(start, "digest", usable)
        made = Control(tmp_path, ledger, Controller(ledger, agenda, sources, limits, start, keep))
        made.controller.clock = lambda: made.now
        return made

    return make


@pytest.fixture
def captured_results():
    return results
