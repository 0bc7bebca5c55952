"""In: counts of ids. Out: checks of what a draft vocabulary is said to cover."""

import numpy as np
import pytest

from specforge.runtime.data.vocab_report import vocab_report

pytestmark = pytest.mark.cpu


def test_the_missed_ids_are_the_most_frequent_that_are_not_kept():
    report = vocab_report(np.array([0, 5, 1, 9, 1, 4, 0]), 2)
    assert (report.size, report.vocab_size, report.tokens, report.distinct) == (2, 7, 20, 5)
    assert report.coverage == 14 / 20
    assert report.missed == ((5, 4), (2, 1), (4, 1))
    assert report.by_size == ()
    text = report.text(lambda id: "'x'" if id == 5 else "")
    assert "2 of 7 ids, 70.00% of the replies' tokens" in text
    assert "       5        4x 'x'\n" in text


def test_coverage_at_the_sizes_that_the_target_has():
    counts = np.zeros(5000, np.int64)
    counts[:3000] = 1
    report = vocab_report(counts, 3000)
    assert report.missed == ()
    assert report.by_size == ((1000, 1 / 3), (2000, 2 / 3), (4000, 1.0))
    assert "not covered" not in report.text(str)
    assert "     1,000   33.33%" in report.text(str)
