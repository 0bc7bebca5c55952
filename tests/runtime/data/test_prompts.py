"""In: pre-tokenised rows, sound and faulty. Out: checks of ids and mask and of the reason of each fault."""

import numpy as np
import pytest

from specforge.runtime.data.prompts import prompt
from specforge.runtime.data.row_fault import RowFault

pytestmark = pytest.mark.null


@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": [3, 0, 9], "loss_mask": [0, 1, 1]},
        {"input_ids": [[3, 0, 9]], "loss_mask": [[0, 1, 1]], "id": "x"},
        {"input_ids": [[3, 0, 9]], "loss_mask": [0, 1, 1]},
    ],
)
def test_rows_become_ids_and_mask(row):
    ids, mask = prompt(row, 10)
    assert ids.dtype == np.int32
    assert mask.dtype == np.bool_
    assert ids.tolist() == [3, 0, 9]
    assert mask.tolist() == [False, True, True]


FAULTS = [
    ([1, 2], "row is not an object"),
    ({"loss_mask": [1]}, "no input_ids"),
    ({"input_ids": [1]}, "no loss_mask"),
    ({"input_ids": 3, "loss_mask": [1]}, "input_ids is not a list"),
    ({"input_ids": [1], "loss_mask": None}, "loss_mask is not a list"),
    ({"input_ids": [], "loss_mask": []}, "empty row"),
    ({"input_ids": [[]], "loss_mask": [[]]}, "empty row"),
    ({"input_ids": [[1], [2]], "loss_mask": [1, 1]}, "input_ids holds no integers"),
    ({"input_ids": [1, 2.0], "loss_mask": [1, 1]}, "input_ids holds no integers"),
    ({"input_ids": [1, "2"], "loss_mask": [1, 1]}, "input_ids holds no integers"),
    ({"input_ids": [1, True], "loss_mask": [1, 1]}, "input_ids holds no integers"),
    ({"input_ids": [1, 2], "loss_mask": [True, False]}, "loss_mask holds no integers"),
    ({"input_ids": [1, 2], "loss_mask": [0, 1.0]}, "loss_mask holds no integers"),
    ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "loss_mask is not 0 or 1"),
    ({"input_ids": [1, 2], "loss_mask": [0, -1]}, "loss_mask is not 0 or 1"),
    ({"input_ids": [1, 2], "loss_mask": [1]}, "lengths differ"),
    ({"input_ids": [1, 10], "loss_mask": [1, 1]}, "token id outside the vocabulary"),
    ({"input_ids": [-1, 2], "loss_mask": [1, 1]}, "token id outside the vocabulary"),
    ({"input_ids": [1, 2**40], "loss_mask": [1, 1]}, "token id outside the vocabulary"),
]


@pytest.mark.parametrize(("row", "reason"), FAULTS)
def test_each_fault_has_its_reason(row, reason):
    with pytest.raises(RowFault) as caught:
        prompt(row, 10)
    assert caught.value.reason == reason
