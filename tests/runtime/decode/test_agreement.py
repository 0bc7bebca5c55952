"""In: two outputs of the same prompts. Out: the first difference of each, and which are near-ties."""

import pytest

from specforge.runtime.decode.acceptance import Acceptance
from specforge.runtime.decode.agreement import Difference, compare
from specforge.runtime.decode.speculative import Decoded

pytestmark = pytest.mark.cpu
NONE = Acceptance((0,), 0, 0, 0)


def _decoded(tokens, gaps):
    return Decoded(tuple(map(tuple, tokens)), tuple(map(tuple, gaps)), (), NONE, 1.0)


def test_equal_outputs_do_not_differ():
    one = _decoded([[1, 2]], [[0.0, 0.0]])
    assert compare(one, one, "bfloat16") == ()


@pytest.mark.parametrize(
    ("gap", "other", "dtype", "near"),
    [
        (1.0, 3.0, "bfloat16", True),
        (3.0, 1.0, "bfloat16", True),
        (2.0, 3.0, "bfloat16", False),
        (1.0, 4.0, "bfloat16", False),
        (1.0, 3.0, "float32", False),
    ],
)
def test_the_first_difference_counts_and_a_near_tie_needs_small_gaps_in_bf16(gap, other, dtype, near):
    plain = _decoded([[7, 8], [1, 2, 3]], [[0, 0], [9.0, gap, 0.0]])
    spec = _decoded([[7, 8], [1, 5, 6]], [[0, 0], [9.0, other, 0.0]])
    assert compare(plain, spec, dtype) == (Difference(1, 1, gap, other, near),)


def test_an_output_that_only_stops_early_is_never_excused():
    (found,) = compare(_decoded([[1, 2, 3]], [[0.0] * 3]), _decoded([[1, 2]], [[0.0] * 2]), "bfloat16")
    assert (found.position, found.near_tie) == (2, False)
