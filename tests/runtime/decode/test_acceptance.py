"""In: histograms of accepted drafts. Out: acceptance length and shares, by hand."""

import pytest

from specforge.runtime.decode.acceptance import Acceptance

pytestmark = pytest.mark.cpu


def test_figures_by_hand():
    counts = Acceptance(histogram=(4, 3, 2, 1), prompts=2, generated_tokens=21, cut_tokens=1)
    assert (counts.verifies, counts.accepted_tokens) == (10, 10)
    assert counts.acceptance_length == 2.0
    assert counts.per_position == (0.6, 0.3, 0.1)
    assert counts.generated_tokens == counts.prompts + counts.verifies + counts.accepted_tokens - counts.cut_tokens


def test_counts_of_batches_add_up():
    both = Acceptance((1, 2), 1, 5, 1) + Acceptance((3, 0), 2, 5, 0)
    assert both == Acceptance((4, 2), 3, 10, 1)


def test_nothing_verified_is_no_length():
    counts = Acceptance((0, 0), 1, 1, 0)
    assert (counts.acceptance_length, counts.per_position) == (0.0, (0.0,))
