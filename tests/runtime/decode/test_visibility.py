"""In: a cache that grew. Out: which entries each query may see."""

import pytest
import torch

from specforge.runtime.decode.visibility import Visibility

pytestmark = pytest.mark.cpu


def test_rejected_entries_stay_hidden_and_new_ones_are_causal():
    visibility = Visibility(2, torch.device("cpu"))
    visibility.append(torch.tensor([[True, True, False], [True, False, False]]))
    assert visibility.block(2).int().tolist() == [
        [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]],
        [[1, 0, 0, 1, 0], [1, 0, 0, 1, 1]],
    ]
    assert visibility.suffix(2).int().tolist() == [[[1, 1, 0, 1, 1]], [[1, 0, 0, 1, 1]]]
    visibility.append(torch.tensor([[False, False], [True, False]]))
    assert visibility.standing_BT.int().tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 1, 0]]
