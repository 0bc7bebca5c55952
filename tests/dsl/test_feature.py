"""In: features of a document. Out: their size per token is exact, and they compare by value."""

import pytest

from specforge.dsl.feature import DTYPE_BYTES, Feature

pytestmark = pytest.mark.null


@pytest.mark.parametrize(("dtype", "size"), DTYPE_BYTES.items())
def test_bytes_per_token(dtype, size):
    assert Feature("aux", 192, dtype).bytes_per_token == 192 * size


def test_layers_are_part_of_the_type():
    assert Feature("aux", 6, "float32", layers=(1, 2)) != Feature("aux", 6, "float32", layers=(1, 3))
    assert len({Feature("tokens", 1, "int32"), Feature("tokens", 1, "int32")}) == 1
