"""In: orders of small runs. Out: checks that steps partition epochs and depend on nothing but seed, epoch and step."""

import subprocess
import sys

import numpy as np
import pytest

from specforge.runtime.data.order import Order, capture_batches, packed

pytestmark = pytest.mark.null


def flat(order, steps):
    return [d for step in steps for micro in order.step(step) for d in micro]


@pytest.mark.parametrize("documents", [1, 2, 6, 11, 12, 13, 24])
@pytest.mark.parametrize(("batch", "accumulation"), [(1, 1), (2, 3), (4, 1), (3, 2)])
def test_every_epoch_holds_every_document_once(documents, batch, accumulation):
    order = Order(5, documents, batch, accumulation, epochs=2)
    per_epoch = order.steps_per_epoch
    assert order.total_steps == 2 * per_epoch
    for epoch in range(2):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert {order.epoch(s) for s in steps} == {epoch}
        assert sorted(flat(order, steps)) == list(range(documents))
        sizes = [[len(micro) for micro in order.step(s)] for s in steps]
        assert all(step == [batch] * accumulation for step in sizes[:-1])
        assert len(sizes[-1]) <= accumulation
        assert all(size == batch for size in sizes[-1][:-1])
        assert 1 <= sizes[-1][-1] <= batch


def test_the_tail_of_an_epoch_is_a_smaller_step():
    order = Order(0, documents=11, batch_documents=2, accumulation=3, epochs=1)
    assert [[len(m) for m in order.step(s)] for s in range(2)] == [[2, 2, 2], [2, 2, 1]]
    assert [len(m) for m in Order(0, 7, 2, 3, 1).step(1)] == [1]


def test_a_step_does_not_depend_on_what_was_asked_before_nor_on_global_generators():
    order = Order(9, 40, 3, 2, 3)
    forward = [order.step(s) for s in range(order.total_steps)]
    np.random.seed(1)
    again = Order(9, 40, 3, 2, 3)
    backward = [again.step(s) for s in reversed(range(order.total_steps))]
    assert forward == backward[::-1]


def test_epochs_and_seeds_differ_and_batch_sizes_keep_the_order():
    order = Order(9, 40, 4, 1, 2)
    first, second = flat(order, range(10)), flat(order, range(10, 20))
    assert first != second != sorted(second)
    assert flat(Order(10, 40, 4, 1, 1), range(10)) != first
    assert flat(Order(9, 40, 5, 2, 1), range(4)) == first


def test_the_order_is_the_same_in_every_process_and_release():
    code = "from specforge.runtime.data.order import Order; print([Order(42, 8, 8, 1, 2).step(s) for s in (0, 1)])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == PINNED


PINNED = "[((0, 1, 4, 2, 6, 5, 7, 3),), ((7, 3, 4, 2, 5, 6, 0, 1),)]"


def test_max_steps_ends_early_and_never_prolongs():
    assert Order(0, 10, 2, 1, 3, max_steps=4).total_steps == 4
    assert Order(0, 10, 2, 1, 3, max_steps=99).total_steps == 15
    with pytest.raises(IndexError, match="step 4 is not in this run of 4 steps"):
        Order(0, 10, 2, 1, 3, max_steps=4).step(4)
    with pytest.raises(IndexError, match="step -1"):
        Order(0, 10, 2, 1, 3).step(-1)


def test_documents_captured_together_are_cut_by_length_where_they_make_several_batches():
    lengths = {7: 30, 3: 5, 1: 9, 8: 30, 2: 4}.__getitem__
    together = (7, 3, 1, 8, 2)
    assert capture_batches(together, lengths, 2) == ((2, 3), (1, 7), (8,))
    assert capture_batches(together, lengths, 5) == (together,)
    assert capture_batches((), lengths, 5) == ()


def test_no_documents_is_an_error():
    with pytest.raises(ValueError, match="no documents to train on"):
        Order(0, 0, 2, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"batch_documents": 0}, "batch_documents is 0"),
        ({"accumulation": 0}, "accumulation is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_senseless_numbers_are_errors(change, message):
    given = {"seed": 0, "documents": 4, "batch_documents": 2, "accumulation": 1, "epochs": 1, **change}
    with pytest.raises(ValueError, match=message):
        Order(**given)


LENGTHS = tuple(int(n) for n in np.random.default_rng(4).integers(1, 60, 200))


def by_tokens(lengths=LENGTHS, tokens=100, seed=3, **changes):
    settings = {"accumulation": 1, "epochs": 2, **changes}
    return Order(seed, len(lengths), None, packs=packed(seed, lengths, tokens), **settings)


@pytest.mark.parametrize(("accumulation", "ranks"), [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_packs_hold_every_document_of_an_epoch_once_and_never_too_many_tokens(accumulation, ranks):
    order = by_tokens(accumulation=accumulation, ranks=ranks)
    for epoch in range(2):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        packs = [pack for step in steps for pack in order.whole_step(step)]
        assert sorted(d for pack in packs for d in pack) == list(range(200))
        assert all(sum(LENGTHS[d] for d in pack) <= 100 for pack in packs)
    assert order.total_steps == 2 * order.steps_per_epoch
    assert order.whole_step(0) != order.whole_step(order.steps_per_epoch), "epochs differ"


def test_packs_are_well_filled_and_no_two_could_be_one():
    packs = packed(3, LENGTHS, 100)
    filled = sorted(sum(LENGTHS[d] for d in pack) for pack in packs)
    assert sum(filled) > 0.95 * 100 * len(packs)
    whole = packed(3, (4, 5, 6), 15)
    assert len(whole) == 1
    assert sorted(whole[0]) == [0, 1, 2]


def test_packs_are_a_function_of_seed_lengths_and_tokens():
    code = "from specforge.runtime.data.order import packed; print(packed(42, (5, 1, 4, 3, 2, 6), 7))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == str(packed(42, (5, 1, 4, 3, 2, 6), 7)) == PINNED_PACKS
    assert packed(43, LENGTHS, 100) != packed(42, LENGTHS, 100) != packed(42, LENGTHS, 101)


PINNED_PACKS = "((1, 5), (0, 4), (2, 3))"


def test_a_document_that_fits_no_pack_is_an_error():
    with pytest.raises(ValueError, match="document 1 has 9 tokens, and a pack holds 8; lower max_length"):
        packed(0, (3, 9), 8)


@pytest.mark.parametrize("documents", [1, 7, 24, 25])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_has_as_many_micro_steps_and_together_they_are_one_rank_s(documents, ranks):
    """Ranks of one micro-step and a rank of as many micro-steps do the same work; what is left is dealt evenly."""
    dealt = Order(5, documents, 2, 2, 2, ranks=ranks)
    alone = Order(5, documents, 2, 2 * ranks, 2)
    assert dealt.steps_per_epoch == alone.steps_per_epoch
    for step in range(alone.total_steps):
        shares = [dealt.step(step, rank) for rank in range(ranks)]
        assert len({len(share) for share in shares}) == 1
        in_turn = [pack for turn in zip(*shares) for pack in turn if pack]
        assert tuple(in_turn) == alone.step(step)
        assert dealt.whole_step(step) == tuple(pack for share in shares for pack in share)


@pytest.mark.parametrize("order", [by_tokens(ranks=2), by_tokens(accumulation=2), Order(1, 50, 3, 2, 2, ranks=2)])
@pytest.mark.parametrize("capture", [1, 10, 40])
def test_a_document_is_captured_in_the_same_company_whatever_step_asks(order, capture):
    for rank in range(order.ranks):
        for step in range(order.total_steps):
            company = order.captured_with(step, capture, rank)
            assert company[step] == tuple(d for pack in order.step(step, rank) for d in pack)
            assert all(order.captured_with(other, capture, rank) == company for other in company)
            assert len(company) == 1 or sum(map(len, company.values())) <= capture
