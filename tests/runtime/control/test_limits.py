"""In: agendas and what a plan asks for. Out: watermarks that hold two steps and a capture batch, or more."""

import pytest

from specforge.runtime.control.limits import Limits, at_least
from specforge.runtime.data.agenda import Agenda, HeldOut
from specforge.runtime.data.order import Order

pytestmark = pytest.mark.null
ORDER = Order(seed=3, documents=22, batch_documents=2, accumulation=2, epochs=2)  # steps of 4, the last of an epoch 2


@pytest.mark.parametrize(
    ("asked", "capture_documents", "packed", "found"),
    [((0, 0), 3, 1, (11, 4)), ((0, 0), 8, 1, (16, 4)), ((100, 50), 8, 1, (100, 50)), ((0, 0), 1, 30, (31, 30))],
)
def test_watermarks_hold_what_the_trainer_takes(asked, capture_documents, packed, found):
    agenda = Agenda(ORDER, capture_documents, (len, len), (HeldOut(5, 30, packed),))
    limits = at_least(Limits(*asked, 1.0, 3), agenda)
    assert (limits.high_samples, limits.low_samples) == found
