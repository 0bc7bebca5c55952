"""In: document and position of each key and query row, on the host. Out: `Blocks`, the Triton kernels' task lists.

Rows are never moved: a kernel reads them through an index sorted by (document, position). A task is one block of such
rows with the range of the other side that it meets, so work is proportional to the causal pairs however documents are
long. Legend: Q query rows, C key rows, M query tasks, N key tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

QUERY_BLOCK, KEY_BLOCK = 64, 64


@dataclass(frozen=True, eq=False)
class Blocks:
    """int32, on the host or (after `to`) on a device.

    `query_rows_Q`: rows in sorted order; `query_positions_Q`: their positions. `key_rows_C`: likewise.
    `query_tasks_M5`: first query, end of queries, first key (position 0) in sorted order, first and end of the key
    positions that are seen. `key_tasks_N5`: first key, end of keys, position of the first, first and end of the
    queries that see any of them. Longest tasks first.
    """

    query_rows_Q: Any
    query_positions_Q: Any
    key_rows_C: Any
    query_tasks_M5: Any
    key_tasks_N5: Any
    window: int = 0

    def to(self, device: torch.device | str) -> Blocks:
        """On `device`, in one copy."""
        arrays = (
            self.query_rows_Q,
            self.query_positions_Q,
            self.key_rows_C,
            self.query_tasks_M5,
            self.key_tasks_N5,
        )
        whole = torch.from_numpy(np.concatenate([a.ravel() for a in arrays]).astype(np.int32))
        whole = whole.pin_memory() if torch.device(device).type == "cuda" else whole
        parts = whole.to(device, non_blocking=True).split([a.size for a in arrays])
        return Blocks(*(p.view(a.shape) for p, a in zip(parts, arrays, strict=True)), window=self.window)


def blocks(
    document_Q: np.ndarray,
    position_Q: np.ndarray,
    document_C: np.ndarray,
    position_C: np.ndarray,
    window: int = 0,
) -> Blocks:
    """`window`: a query sees keys of its last `window` positions, itself included; 0: all before it.

    The keys of a document are its positions 0, 1, ... without a gap, in any order.
    """
    query_rows, key_rows = np.lexsort((position_Q, document_Q)), np.lexsort((position_C, document_C))
    positions = position_Q[query_rows]
    documents = int(max(document_Q.max(initial=-1), document_C.max(initial=-1))) + 1
    query_ends = np.cumsum(np.bincount(document_Q, minlength=documents))
    key_ends = np.cumsum(np.bincount(document_C, minlength=documents))
    query_tasks, key_tasks = [], []
    query_start = key_start = 0
    for query_end, key_end in zip(query_ends.tolist(), key_ends.tolist(), strict=True):
        for first in range(query_start, query_end, QUERY_BLOCK):
            end = min(first + QUERY_BLOCK, query_end)
            seen = max(0, int(positions[first]) - window + 1) if window else 0
            query_tasks.append((first, end, key_start, seen, int(positions[end - 1]) + 1))
        of_document = positions[query_start:query_end]
        for first in range(key_start, key_end, KEY_BLOCK):
            end, place = min(first + KEY_BLOCK, key_end), first - key_start
            low = query_start + int(np.searchsorted(of_document, place))
            last = place + end - first - 1
            high = query_start + int(np.searchsorted(of_document, last + window)) if window else query_end
            key_tasks.append((first, end, place, low, high))
        query_start, key_start = query_end, key_end
    return Blocks(query_rows, positions, key_rows, _longest_first(query_tasks), _longest_first(key_tasks), window)


def _longest_first(tasks: list[tuple[int, ...]]) -> np.ndarray:
    table = np.array(tasks, np.int64).reshape(-1, 5)
    return table[np.argsort(table[:, 3] - table[:, 4], kind="stable")]
