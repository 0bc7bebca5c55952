"""In: leases, results, faults and a clock. Out: what the controller hands out, waits for, repeats and gives up."""

import pytest

from specforge.runtime.control.controller import ControlError
from specforge.runtime.control.limits import Limits
from specforge.runtime.control.message import Commit, Failed, Turn
from specforge.runtime.data.order import Order

pytestmark = pytest.mark.null


def test_batches_go_out_in_the_order_of_need_up_to_the_high_watermark(control):
    made = control()
    names = made.captured()
    assert names == ["0.0/0", "1.0/0"], "8 samples are captured and untrained"
    made.controller.take(Turn(0))
    made.controller.acknowledge(Turn(0))
    assert made.captured() == ["2.0/0"], "4 are left, which is the low watermark"


def test_capture_rests_from_the_high_watermark_to_the_low_one(control):
    made = control(limits=Limits(12, 4, 10.0, 3))
    assert made.captured() == ["0.0/0", "1.0/0", "2.0/0"]
    made.controller.take(Turn(0))
    made.controller.acknowledge(Turn(0))
    assert made.captured() == [], "8 samples are above the low watermark"
    made.controller.take(Turn(1))
    made.controller.acknowledge(Turn(1))
    assert made.captured() == ["3.0/0"]


def test_capture_rests_where_the_store_is_full(control):
    """A batch is 400 bytes."""
    made = control(limits=Limits(100, 50, 10.0, 3, high_bytes=800))
    assert made.captured() == ["0.0/0", "1.0/0"]
    made.controller.take(Turn(0))
    made.controller.acknowledge(Turn(0))
    assert made.captured() == ["2.0/0"]


def test_what_the_trainer_waits_for_is_leased_above_any_watermark(control):
    """Capture batches of 2 documents, watermarks of 1: a step of 4 documents still comes together."""
    made = control(limits=Limits(1, 1, 10.0, 3), capture_documents=2)
    for step in range(4):
        assert not made.controller.take(Turn(step)).ready
        made.captured()
        assert made.controller.take(Turn(step)).ready
        made.controller.acknowledge(Turn(step))


def test_take_waits_for_exactly_its_samples_whatever_arrives_first(control, captured_results):
    made = control(capture_documents=2)
    first, second = (made.controller.lease(worker) for worker in ("a", "b"))
    assert made.controller.commit(Commit(second.id, captured_results(second)))
    taken = made.controller.take(Turn(0))
    assert (taken.ready, taken.given) == (False, ())
    assert taken.missing == f"2 leased of 4 samples; leases: {first.batch} with a"
    assert made.controller.commit(Commit(first.id, captured_results(first)))
    taken = made.controller.take(Turn(0))
    assert taken.ready
    order = Order(seed=1, documents=16, batch_documents=2, accumulation=2, epochs=1)
    assert [g.document for g in taken.given] == [document for pack in order.step(0) for document in pack]


def test_a_lost_sample_leaves_a_hole_and_nobody_waits_for_it(control):
    made = control()
    document = made.controller.lease("w")
    made.controller.fail(Failed(document.id, "again, please"))
    lost = document.documents[1].document
    made.captured(fault={lost})
    taken = made.controller.take(Turn(0))
    assert taken.ready
    assert [(h.document, h.reason) for h in taken.holes] == [(lost, "NaN")]
    assert lost not in [g.document for g in taken.given]
    assert made.controller.status().holes == 1


def test_a_lease_that_ran_out_goes_to_another_and_its_late_result_is_refused(control, captured_results):
    made = control()
    slow = made.controller.lease("slow")
    made.now = 10.0
    fast = made.controller.lease("fast")
    assert fast.batch == slow.batch
    assert [w.generation for w in slow.documents] == [1] * 4
    assert [w.generation for w in fast.documents] == [2] * 4
    assert not made.controller.commit(Commit(slow.id, captured_results(slow)))
    assert made.controller.commit(Commit(fast.id, captured_results(fast)))
    assert {g.reference.generation for g in made.controller.take(Turn(0)).given} == {2}
    assert not made.controller.commit(Commit(fast.id, captured_results(fast))), "once"
    assert made.controller.status().retries == 1


def test_a_batch_that_fails_too_often_is_the_end_of_the_run(control):
    made, notes = control(), []
    made.controller.note = notes.append
    for attempt in range(3):
        lease = made.controller.lease("w")
        assert lease.batch == "0.0/0"
        made.controller.fail(Failed(lease.id, f"no memory, attempt {attempt + 1}"))
    assert notes[1] == "capture batch 0.0/0, attempt 2: no memory, attempt 2"
    for call in (lambda: made.controller.lease("w"), lambda: made.controller.take(Turn(0))):
        with pytest.raises(ControlError, match=r"^capture batch 0\.0/0 failed 3 times, the last time: no memory, att"):
            call()


def test_results_of_something_else_are_a_failed_attempt(control, captured_results):
    made = control()
    lease = made.controller.lease("w")
    assert not made.controller.commit(Commit(lease.id, captured_results(lease)[1:]))
    assert made.controller.lease("w").batch == lease.batch
    assert made.controller.status().retries == 1


def test_acknowledged_features_are_released_at_once_or_when_they_are_covered(control):
    made = control()
    made.captured()
    assert len(made.controller.take(Turn(0)).given) == 4
    assert len(made.controller.acknowledge(Turn(0))) == 4
    assert made.controller.cover(1) == []
    made.ledger.close()
    made = control(keep=True, usable=lambda _: True)
    made.captured()
    made.controller.take(Turn(0))
    assert made.controller.acknowledge(Turn(0)) == []
    assert len(made.controller.cover(1)) == 4


def test_a_run_goes_on_where_the_checkpoint_stands(control):
    made = control(start=2)
    assert made.captured() == ["2.0/0", "3.0/0"]
    with pytest.raises(ControlError, match="asks for optimizer step 1, and the ledger stands at 2 of 4"):
        made.controller.take(Turn(1))
    with pytest.raises(ControlError, match="asks for optimizer step 4"):
        made.controller.take(Turn(4))


def test_a_turn_is_trained_once(control):
    made = control()
    made.captured()
    made.controller.take(Turn(0))
    made.controller.acknowledge(Turn(0))
    with pytest.raises(ControlError, match="was trained already"):
        made.controller.take(Turn(0))
    with pytest.raises(ControlError, match="is not on the agenda"):
        made.controller.take(Turn(0, 7))


def test_an_evaluation_is_captured_after_its_step(control):
    made = control(held_out=[(2, 3, 2)])
    for step in range(4):
        made.controller.take(Turn(step))
        made.captured()
        assert made.controller.take(Turn(step)).ready
        made.controller.acknowledge(Turn(step))
        for slot in (1, 2) if step % 2 else ():
            made.controller.take(Turn(step, slot))
            made.captured()
            given = made.controller.take(Turn(step, slot)).given
            assert [g.document for g in given] == ([0, 1] if slot == 1 else [2])
            made.controller.acknowledge(Turn(step, slot))
    assert made.controller.lease("w") is None


def test_a_lease_holds_tokens_and_who_only_keeps_company(control):
    """Step 0 is trained, and was captured with step 1: its documents go along and nothing is stored of them."""
    made = control(start=1, capture_documents=8)
    lease = made.controller.lease("w")
    assert lease.batch == "0.0/0"
    assert [bool(w.key) for w in lease.documents] == [False] * 4 + [True] * 4
    assert all(w.tokens == tuple(range(3 + w.document)) for w in lease.documents)
