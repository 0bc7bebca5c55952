"""In: random documents, queries, windows. Out: the tasks of each side cover the visible pairs, all once, no other."""

from __future__ import annotations

import numpy as np
import pytest

from specforge_kernels.ttt_attention.blocks import SLOTS, blocks

pytestmark = pytest.mark.null


def drawn(seed):
    """Document and position of queries in random order, keys per document (queries or keys may lack), window."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, rng.choice([3, 70, 400]), rng.integers(1, 9))
    document, position = np.repeat(np.arange(len(keys)), keys), np.concatenate([np.arange(n) for n in keys])
    chosen = rng.permutation(np.flatnonzero(rng.random(len(document)) < rng.choice([0.0, 0.1, 1.0])))
    return document[chosen], position[chosen], keys, int(rng.choice([0, 0, 1, 50, 1000]))


def visible(document, position, keys, window):
    """[queries, keys] over all documents' keys laid end to end."""
    key_document, key_position = np.repeat(np.arange(len(keys)), keys), np.concatenate([np.arange(n) for n in keys])
    seen = (document[:, None] == key_document) & (key_position <= position[:, None])
    return seen & (key_position > position[:, None] - window) if window else seen


@pytest.mark.parametrize("seed", range(60))
def test_tasks_cover_the_visible_pairs(seed):
    document, position, keys, window = drawn(seed)
    found, seen = blocks(document, position, keys, window), visible(document, position, keys, window)
    rows, slots = found.query_rows_S, len(found.query_rows_S)
    assert slots % SLOTS == 0
    assert sorted(rows[rows >= 0]) == list(range(len(document)))
    assert (found.query_positions_S[rows >= 0] == position[rows[rows >= 0]]).all()

    asked = np.zeros_like(seen, dtype=int)
    for begin, end, base, low, high, full in found.query_tasks_M6:
        assert (rows[begin:end] >= 0).all()
        block = np.ix_(rows[begin:end], np.arange(base + low, base + high))
        asked[block] += 1
        assert seen[np.ix_(rows[begin:end], np.arange(base + low, base + max(low, min(full, high))))].all()
    assert (asked[seen] == 1).all()

    read = np.zeros_like(seen, dtype=int)
    for begin, end, place, low, high, full in found.key_tasks_N6:
        assert low % SLOTS == 0
        at = rows[low:high]
        read[np.ix_(at[at >= 0], np.arange(begin, end))] += 1
        whole = rows[min(full, high) : high]
        assert seen[np.ix_(whole[whole >= 0], np.arange(begin, end))].all()
        if at.size:
            assert len(set(document[at[at >= 0]])) <= 1, "of one document"
            past = rows[high : -(-high // SLOTS) * SLOTS]
            of_task = np.repeat(np.arange(len(keys)), keys)[begin]
            assert all(row < 0 or document[row] == of_task for row in past), "a block past the end meets its own alone"
        assert place == begin - (np.cumsum(keys) - keys)[np.repeat(np.arange(len(keys)), keys)[begin]]
    assert (read[seen] == 1).all()
