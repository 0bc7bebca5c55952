"""In: counts of token ids. Out: checks of the vocabulary map: which ids are kept, offsets, round trip, coverage."""

from collections import Counter

import numpy as np
import pytest

from specforge.runtime.data.pack import Document
from specforge.runtime.data.vocab_map import check, count, vocab_map

pytestmark = pytest.mark.null


def document(tokens, mask):
    return Document(0, np.array(tokens, np.int32), np.array(mask, np.bool_))


def test_counts_supervised_input_ids_unshifted_with_the_last_row():
    documents = [document([3, 5, 5, 2], [0, 1, 1, 1]), document([5, 3], [1, 0])]
    assert count(documents, 8).tolist() == [0, 0, 1, 0, 0, 3, 0, 0]


def test_most_frequent_first_ties_by_id_ascending_as_offsets():
    made = vocab_map(np.array([1, 0, 7, 2, 2, 2, 0, 9]), 4)
    assert (np.arange(4) + made.d2t).tolist() == [2, 3, 4, 7]
    assert made.d2t.tolist() == [2, 2, 2, 4]
    assert made.d2t.dtype == np.int64
    assert made.t2d.tolist() == [False, False, True, True, True, False, False, True]
    assert made.t2d.dtype == np.bool_
    assert made.coverage == 20 / 23


def test_fewer_distinct_ids_than_places_are_filled_with_the_smallest_unseen():
    made = vocab_map(np.array([0, 0, 0, 4, 0, 0, 1, 0]), 5)
    assert (np.arange(5) + made.d2t).tolist() == [0, 1, 2, 3, 6]
    assert made.coverage == 1.0
    assert vocab_map(np.zeros(4, np.int64), 2).coverage == 0.0


def test_the_whole_vocabulary_is_the_identity():
    made = vocab_map(np.array([0, 3, 1]), 3)
    assert made.d2t.tolist() == [0, 0, 0]
    assert made.t2d.all()
    assert made.coverage == 1.0


def test_agrees_with_a_plain_count_on_random_documents():
    draw = np.random.default_rng(0)
    documents = [document(draw.integers(0, 50, n) ** 2 % 97, draw.random(n) < 0.6) for n in draw.integers(2, 60, 30)]
    seen = Counter(int(t) for d in documents for t, m in zip(d.tokens, d.loss_mask) if m)
    for size in (1, 7, 30, 97):
        kept = sorted(sorted(range(97), key=lambda i: (-seen[i], i))[:size])
        made = vocab_map(count(documents, 97), size)
        assert (np.arange(size) + made.d2t).tolist() == kept
        assert np.flatnonzero(made.t2d).tolist() == kept
        assert made.coverage == pytest.approx(sum(seen[i] for i in kept) / seen.total())
        check(made.d2t, made.t2d, size, 97)


@pytest.mark.parametrize("size", [0, -1, 9])
def test_a_size_that_does_not_fit_is_an_error(size):
    with pytest.raises(ValueError, match=rf"a draft vocabulary of {size} does not fit a target vocabulary of 8"):
        vocab_map(np.zeros(8, np.int64), size)


def test_stale_and_absolute_maps_are_refused():
    made = vocab_map(np.array([0, 5, 0, 5, 5, 0]), 3)
    with pytest.raises(ValueError, match="d2t has 3 entries, this plan needs 4"):
        check(made.d2t, made.t2d, 4, 6)
    with pytest.raises(ValueError, match="t2d has 6 entries, this plan needs 8"):
        check(made.d2t, made.t2d, 3, 8)
    with pytest.raises(ValueError, match="d2t holds offsets"):
        check(np.arange(3) + made.d2t, made.t2d)
    with pytest.raises(ValueError, match="are not one map"):
        check(made.d2t[:2], made.t2d)
