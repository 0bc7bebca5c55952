"""In: document and position of each query row, keys per document, on the host. Out: `Blocks`, the kernels' task lists.

Kernels read queries through an index sorted by (document, position). Keys lie in that order. A task is one block of
such rows of one document with the range of the other side that it meets, so work is proportional to the causal pairs
however documents are long.
Legend: D documents, Q query rows, S slots of them, C key rows, M query tasks, N key tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

QUERY_BLOCK, KEY_BLOCK, SLOTS = 128, 128, 64


@dataclass(frozen=True, eq=False)
class Blocks:
    """int64, on the host or (after `to` or `replaced`) on a device.

    `query_rows_S`: query rows by slot: sorted, each document's from a multiple of 64 on, -1 in between;
    `query_positions_S`: their positions.
    `query_tasks_M6`: first slot, end of slots, row of the document's first key, first and end of the key positions
    that any sees, keys from the first that all see. `key_tasks_N6`: first key, end of keys, position of the first,
    first and end of the slots that see any (the first at a multiple of 64), first of the slots that see all up to the
    end. Longest tasks first.
    """

    query_rows_S: Any
    query_positions_S: Any
    query_tasks_M6: Any
    key_tasks_N6: Any
    window: int = 0
    shared: ClassVar[int] = 0

    @property
    def indices(self) -> tuple[Any, ...]:
        """The four index fields in order, for an upload together with others."""
        return self.query_rows_S, self.query_positions_S, self.query_tasks_M6, self.key_tasks_N6

    def replaced(self, indices: tuple[torch.Tensor, ...]) -> Blocks:
        """The same over uploaded indices, which may be flat."""
        rows, positions, query_tasks, key_tasks = indices
        return Blocks(rows, positions, query_tasks.view(-1, 6), key_tasks.view(-1, 6), self.window)

    def to(self, device: torch.device | str) -> Blocks:
        return self.replaced(tuple(torch.as_tensor(x, dtype=torch.int64, device=device) for x in self.indices))


def blocks(document_Q: np.ndarray, position_Q: np.ndarray, keys_D: np.ndarray, window: int = 0) -> Blocks:
    """`keys_D`: keys of each document, its positions 0, 1, ...; keys are laid end to end, documents in order.

    `window`: a query sees keys of its last `window` positions, its own included, and its own pairs; 0: all before it.
    A target with a window of W has at TTT step k, where row t asks at position t + k, the window W - k of its rows.
    """
    queries_D = np.bincount(document_Q, minlength=len(keys_D))
    slots_D = -(-queries_D // SLOTS) * SLOTS
    starts_D, key_starts_D = np.cumsum(queries_D) - queries_D, np.cumsum(keys_D) - keys_D
    shift_D = np.cumsum(slots_D) - slots_D - starts_D  # from a query's rank to its slot
    order = np.lexsort((position_Q, document_Q))
    documents, positions = document_Q[order], position_Q[order]
    rows_S, positions_S = (np.full(slots_D.sum(), -1) for _ in range(2))
    slot_Q = np.arange(len(order)) + shift_D[documents]
    rows_S[slot_Q], positions_S[slot_Q] = order, positions

    document_M, first = _cut(queries_D, QUERY_BLOCK)
    end = np.minimum(first + QUERY_BLOCK, queries_D[document_M])
    begin = starts_D[document_M]
    least, most = positions[begin + first], positions[begin + end - 1]
    low, full = (np.maximum(0, least - window + 1), least * 0) if window else (least * 0, least + 1)
    begin += shift_D[document_M]
    query_tasks = np.stack([begin + first, begin + end, key_starts_D[document_M], low, most + 1, full], 1)

    document_N, first = _cut(keys_D, KEY_BLOCK)
    end, begin = np.minimum(first + KEY_BLOCK, keys_D[document_N]), key_starts_D[document_N]
    apart = keys_D.max(initial=0) + window + 1
    places = documents * apart + positions

    def slot_of(position_N: np.ndarray) -> np.ndarray:
        """The first query of each task's document at or after a position."""
        return np.searchsorted(places, document_N * apart + position_N) + shift_D[document_N]

    low = slot_of(first) // SLOTS * SLOTS
    high = slot_of(end - 1 + window) if window else (starts_D + queries_D + shift_D)[document_N]
    full = high if window else slot_of(end - 1)
    key_tasks = np.stack([begin + first, begin + end, first, low, high, full], 1)
    return Blocks(rows_S, positions_S, _longest_first(query_tasks), _longest_first(key_tasks), window)


def _cut(count_D: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(document, first row inside it) of each block of up to `block` rows."""
    blocks_D = -(-count_D // block)
    document = np.repeat(np.arange(len(count_D)), blocks_D)
    return document, (np.arange(len(document)) - np.repeat(np.cumsum(blocks_D) - blocks_D, blocks_D)) * block


def _longest_first(table: np.ndarray) -> np.ndarray:
    return table[np.argsort(table[:, 3] - table[:, 4], kind="stable")]
