"""In: a pre-tokenised row. Out: its token ids and loss mask; what is wrong with the row is a `RowFault`."""

from __future__ import annotations

from typing import Any

import numpy as np

from specforge.runtime.data.row_fault import RowFault


def prompt(value: Any, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """`input_ids` as int32 [T] and `loss_mask` as bool [T] of a row {"input_ids": [...], "loss_mask": [0 or 1, ...]}.

    A single outer list around either is taken off; other keys are ignored. Raises RowFault for anything but
    integers of equal count, ids in [0, vocab_size) and mask values 0 and 1.
    """
    if not isinstance(value, dict):
        raise RowFault("row is not an object", f"it is {type(value).__name__}")
    ids, mask = (_integers(value, key) for key in ("input_ids", "loss_mask"))
    if len(ids) != len(mask):
        raise RowFault("lengths differ", f"{len(ids)} input_ids, {len(mask)} loss_mask")
    wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise RowFault("token id outside the vocabulary", f"{wrong} is not in [0, {vocab_size})")
    bad = next((m for m in mask if m not in (0, 1)), None)
    if bad is not None:
        raise RowFault("loss_mask is not 0 or 1", f"it holds {bad}")
    return np.array(ids, np.int32), np.array(mask, np.bool_)


def _integers(row: dict[str, Any], key: str) -> list[int]:
    if key not in row:
        raise RowFault(f"no {key}", f"its keys are {sorted(map(str, row))}")
    values = row[key]
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not isinstance(values, list):
        raise RowFault(f"{key} is not a list", f"it is {type(values).__name__}")
    if not values:
        raise RowFault("empty row", f"{key} is empty")
    kinds = set(map(type, values))  # bool is a subclass of int: an isinstance test would let it pass
    if kinds != {int}:
        raise RowFault(f"{key} holds no integers", f"it holds {', '.join(sorted(k.__name__ for k in kinds))}")
    return values
