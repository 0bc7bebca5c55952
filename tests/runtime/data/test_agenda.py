"""In: orders. Out: every sample once, in the order of need, in the company it has in one process."""

import pytest

from specforge.runtime.data.agenda import Agenda, HeldOut, due, turns
from specforge.runtime.data.order import Order, capture_batches

pytestmark = pytest.mark.null
LENGTHS = (lambda document: 5 + document % 7,) * 3
ORDER = Order(seed=3, documents=22, batch_documents=2, accumulation=2, epochs=2, max_steps=9)  # 6 steps per epoch


def kept(agenda, start=0):
    return [sample for group in agenda.batches(start) for batch in group for sample in batch.samples]


@pytest.mark.parametrize("capture_documents", [1, 3, 4, 8, 100])
def test_every_sample_of_the_run_is_captured_once_in_its_place(capture_documents):
    agenda = Agenda(ORDER, capture_documents, LENGTHS)
    found = {(s.step, s.micro, s.place): s.document for s in kept(agenda)}
    wanted = {
        (step, micro, place): document
        for step in range(9)
        for micro, pack in enumerate(ORDER.step(step))
        for place, document in enumerate(pack)
    }
    assert found == wanted
    assert len(kept(agenda)) == len(found)
    assert all(len(batch.documents) <= capture_documents for group in agenda.batches(0) for batch in group)


@pytest.mark.parametrize("start", range(9))
def test_a_resumed_run_captures_in_the_same_company(start):
    """Capture batches of 8 documents hold two steps; a batch begun before the checkpoint keeps its rows."""
    agenda = Agenda(ORDER, 8, LENGTHS)
    whole = {batch.name: batch.documents for group in agenda.batches(0) for batch in group}
    resumed = {batch.name: batch.documents for group in agenda.batches(start) for batch in group}
    assert resumed.items() <= whole.items()
    whole = {sample for sample in kept(agenda) if sample.step >= start}
    assert len(kept(agenda, start)) == len(whole)
    assert set(kept(agenda, start)) == whole


def test_a_prolonged_run_captures_in_the_same_company():
    longer = Agenda(Order(seed=3, documents=22, batch_documents=2, accumulation=2, epochs=2), 8, LENGTHS)
    whole = {batch.name: batch.documents for group in longer.batches(0) for batch in group}
    cut = {batch.name: batch.documents for group in Agenda(ORDER, 8, LENGTHS).batches(0) for batch in group}
    assert cut.items() <= whole.items()


def test_a_batch_is_a_forward_of_the_run_in_one_process():
    batches = [batch for group in Agenda(ORDER, 8, LENGTHS).batches(0) for batch in group]
    together = ORDER.captured_with(0, 8)
    assert set(together) == {0, 1}
    forwards = capture_batches(tuple(d for documents in together.values() for d in documents), LENGTHS[0], 8)
    assert [batch.documents for batch in batches[: len(forwards)]] == list(forwards)


def test_evaluations_come_after_their_steps_pack_by_pack():
    agenda = Agenda(
        ORDER, 2, LENGTHS, (HeldOut(every=4, documents=5, packed=3), HeldOut(every=100, documents=2, packed=2))
    )
    assert [list(agenda.slots(i)) for i in (0, 1)] == [[1, 2], [3]]
    after = {(s.step, s.slot): [] for s in kept(agenda) if s.slot != 0}
    for sample in kept(agenda):
        if sample.slot != 0:
            after[sample.step, sample.slot].append(sample.document)
    assert after == {
        (3, 1): [0, 1, 2],
        (3, 2): [3, 4],
        (7, 1): [0, 1, 2],
        (7, 2): [3, 4],
        (8, 1): [0, 1, 2],
        (8, 2): [3, 4],
        (8, 3): [0, 1],
    }
    in_order = [turn for group in agenda.batches(0) for turn in sorted(turns(group))]
    assert in_order == sorted(set(in_order))
    turn, walked = (0, 0), []
    while turn is not None:
        walked.append(turn)
        turn = agenda.after(*turn)
    assert walked == sorted(in_order)
    sources = {batch.source for group in agenda.batches(0) for batch in group}
    assert sources == {0, 1, 2}


@pytest.mark.parametrize("capture_documents", [1, 4, 9])
def test_every_rank_walks_through_its_own_turns(capture_documents):
    """11 packs an epoch for 3 ranks: the last step has packs for two of them. 5 evaluation packs: rank 2 has one."""
    order = Order(seed=3, documents=22, batch_documents=2, accumulation=1, epochs=2, ranks=3)
    agenda = Agenda(order, capture_documents, LENGTHS, (HeldOut(every=3, documents=9, packed=2),))
    assert [agenda.rank(slot) for slot in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    planned = [turn for group in agenda.batches(0) for turn in sorted(turns(group))]
    walked = []
    for rank in range(3):
        turn = (0, rank)
        while turn is not None:
            assert agenda.rank(turn[1]) == rank
            walked.append(turn)
            turn = agenda.after(*turn)
    assert sorted(walked) == sorted(set(planned))
    assert (3, 2) not in walked
    trained = {(s.step, s.rank, s.micro, s.place): s.document for s in kept(agenda) if s.slot < 3}
    assert trained == {
        (step, rank, micro, place): document
        for step in range(order.total_steps)
        for rank in range(3)
        for micro, pack in enumerate(order.step(step, rank))
        for place, document in enumerate(pack)
    }
    for rank in range(3):
        together = order.captured_with(0, capture_documents, rank)
        mine = [b.documents for group in agenda.batches(0) for b in group if b.name.startswith(f"0.{rank}/")]
        documents = tuple(d for found in together.values() for d in found)
        assert mine == list(capture_batches(documents, LENGTHS[0], capture_documents))


def test_an_evaluation_is_due_every_so_often_and_at_the_end():
    assert [done for done in range(1, 12) if due(done, 5, 11)] == [5, 10, 11]
