"""In: document and position of each query row, keys per document, on the host. Out: `Blocks`, the kernels' task lists.

Queries are not moved: a kernel reads them through an index sorted by (document, position). Keys lie in that order. A
task is one block of such rows of one document with the range of the other side that it meets, so work is proportional
to the causal pairs however documents are long.
Legend: Q query rows, C key rows, M query tasks, N key tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

QUERY_BLOCK, KEY_BLOCK = 128, 128


@dataclass(frozen=True, eq=False)
class Blocks:
    """int64, on the host or (after `to` or `replaced`) on a device.

    `query_rows_Q`: rows in sorted order; `query_positions_Q`: their positions.
    `query_tasks_M6`: first query, end of queries, row of the document's first key, first and end of the key positions
    that any sees, keys from the first that all see. `key_tasks_N6`: first key, end of keys, position of the first,
    first and end of the queries that see any, first of the queries that see all up to the end. Longest tasks first.
    """

    query_rows_Q: Any
    query_positions_Q: Any
    query_tasks_M6: Any
    key_tasks_N6: Any
    window: int = 0
    shared: ClassVar[int] = 0

    @property
    def indices(self) -> tuple[Any, ...]:
        """The four index fields in order, for an upload together with others."""
        return self.query_rows_Q, self.query_positions_Q, self.query_tasks_M6, self.key_tasks_N6

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
    query_rows = np.lexsort((position_Q, document_Q))
    positions = position_Q[query_rows]
    query_ends = np.cumsum(np.bincount(document_Q, minlength=len(keys_D)))
    query_tasks, key_tasks = [], []
    query_start = key_start = 0
    for query_end, keys in zip(query_ends.tolist(), keys_D.tolist(), strict=True):
        of_document = positions[query_start:query_end]
        for first in range(query_start, query_end, QUERY_BLOCK):
            end = min(first + QUERY_BLOCK, query_end)
            least, most = int(positions[first]), int(positions[end - 1])
            low = max(0, least - window + 1) if window else 0
            query_tasks.append((first, end, key_start, low, most + 1, 0 if window else least + 1))
        places = np.arange(0, keys, KEY_BLOCK)
        ends = np.minimum(places + KEY_BLOCK, keys)
        lows = np.searchsorted(of_document, places) + query_start
        highs = np.searchsorted(of_document, ends - 1 + window) + query_start if window else places * 0 + query_end
        fulls = highs if window else np.searchsorted(of_document, ends - 1) + query_start
        key_tasks.append(np.stack([places + key_start, ends + key_start, places, lows, highs, fulls], 1))
        query_start, key_start = query_end, key_start + keys
    tables = (np.array(query_tasks, np.int64).reshape(-1, 6), np.concatenate([np.zeros((0, 6), np.int64), *key_tasks]))
    return Blocks(query_rows, positions, *(_longest_first(t) for t in tables), window)


def _longest_first(table: np.ndarray) -> np.ndarray:
    return table[np.argsort(table[:, 3] - table[:, 4], kind="stable")]
