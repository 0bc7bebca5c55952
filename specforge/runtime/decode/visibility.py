"""In: how many entries each forward appended to a KV cache, and which of them stand. Out: what each query may see.

A cache only grows. An entry that was rejected, or is padding, stays where it is and is hidden from its row for ever.
Legend: B rows, S queries (the entries being appended), T entries already in the cache.
"""

from __future__ import annotations

import torch


class Visibility:
    """Which entries of an append-only cache stand, per row: `standing_BT`, bool."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.standing_BT = torch.zeros(rows, 0, dtype=torch.bool, device=device)

    def block(self, size: int) -> torch.Tensor:
        """bool [B, S, T+S] for `size` new entries: everything that stands, and causal among the new ones.

        A new entry always sees itself, so that no query, padding included, is left with nothing to attend.
        """
        rows, device = self.standing_BT.shape[0], self.standing_BT.device
        causal_SS = torch.ones(size, size, dtype=torch.bool, device=device).tril()
        old_BST = self.standing_BT[:, None, :].expand(rows, size, -1)
        return torch.cat([old_BST, causal_SS.expand(rows, size, size)], dim=2)

    def suffix(self, size: int) -> torch.Tensor:
        """bool [B, 1, T+size] for one query that sees all that stands, the `size` newest entries and so itself."""
        rows, device = self.standing_BT.shape[0], self.standing_BT.device
        own_BS = torch.ones(rows, size, dtype=torch.bool, device=device)
        return torch.cat([self.standing_BT, own_BS], dim=1)[:, None, :]

    def append(self, stands_BS: torch.Tensor) -> None:
        """Record S new entries: True stands, False is hidden from here on."""
        self.standing_BT = torch.cat([self.standing_BT, stands_BS], dim=1)
