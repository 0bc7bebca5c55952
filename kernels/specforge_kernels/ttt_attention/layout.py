"""In: document and position of every key and query row, on the host. Out: `Layout`, where each goes in padded tiles.

Documents of similar length form a group, padded to its longest: [D, C] keys. Queries of a group are cut into tiles of
at most `Tiling.query_block` per document; a tile sees the keys up to its last query, so causality also saves work.
Legend: C key rows, Q query rows, S slots of all padded tiles laid end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch


@dataclass(frozen=True)
class Tiling:
    """How much padding is worth a launch. `query_block`: query slots of a tile, per document.

    `multiple`: key and query slots of a document are padded to it, so that few shapes ever occur. A document joins a
    group while the pairs of padded keys it adds stay under `wasted_share` of the useful ones, or under `wasted_pairs`
    in all.
    """

    query_block: int
    wasted_share: float
    wasted_pairs: int
    multiple: int


CPU_TILING = Tiling(query_block=512, wasted_share=1 / 3, wasted_pairs=1 << 15, multiple=1)
CUDA_TILING = Tiling(query_block=2048, wasted_share=1 / 3, wasted_pairs=1 << 23, multiple=64)


@dataclass(frozen=True)
class Group:
    """`documents` of similar length, padded to `keys` key rows each."""

    documents: int
    keys: int


@dataclass(frozen=True)
class Tile:
    """`queries` slots for each document of group `group`, which see its first `keys` key rows."""

    group: int
    queries: int
    keys: int


@dataclass(frozen=True, eq=False)
class KeyLayout:
    """Keys on the host: the same for every step of an unroll. `slots_S`: the key row of a slot; `home_C`: the inverse.

    `group_D` and `place_D`: where a document went, -1 for a document without keys. `start_G`: first slot of a group.
    """

    groups: tuple[Group, ...]
    tiling: Tiling
    slots_S: np.ndarray
    home_C: np.ndarray
    group_D: np.ndarray
    place_D: np.ndarray


@dataclass(frozen=True, eq=False)
class Layout:
    """Keys and queries of one step. Padding slots name row 0 and have position -1: they see nothing and are not read.

    The five index fields are int64 arrays on the host, or tensors on a device after `to` or `replaced`; the first
    `shared` of them are the same for every step of an unroll.
    """

    groups: tuple[Group, ...]
    tiles: tuple[Tile, ...]
    key_slots_S: Any
    key_home_C: Any
    query_slots_S: Any
    query_positions_S: Any
    query_home_Q: Any
    window: int = 0
    shared: ClassVar[int] = 2

    @property
    def indices(self) -> tuple[Any, ...]:
        """The five index fields in order, for an upload together with others."""
        names = ("key_slots_S", "key_home_C", "query_slots_S", "query_positions_S", "query_home_Q")
        return tuple(getattr(self, name) for name in names)

    def replaced(self, indices: tuple[torch.Tensor, ...]) -> Layout:
        """The same layout over uploaded indices."""
        return Layout(self.groups, self.tiles, *indices, window=self.window)

    def to(self, device: torch.device | str) -> Layout:
        return self.replaced(tuple(torch.as_tensor(x, dtype=torch.int64, device=device) for x in self.indices))


def key_layout(document_C: np.ndarray, position_C: np.ndarray, tiling: Tiling = CPU_TILING) -> KeyLayout:
    """Group the documents. The keys of a document are its positions 0, 1, ... without a gap, in any order."""
    lengths = np.bincount(document_C) if len(document_C) else np.zeros(0, np.int64)
    group_D, place_D = np.full(len(lengths), -1), np.full(len(lengths), -1)
    groups: list[Group] = []
    useful = wasted = 0
    for document in np.argsort(-lengths, kind="stable"):
        length = int(lengths[document])
        if length == 0:
            break
        if groups:
            longest = groups[-1].keys
            waste = wasted + longest**2 - length**2
            fits = waste <= max(tiling.wasted_pairs, tiling.wasted_share * (useful + length**2))
        if not groups or not fits:
            groups.append(Group(0, _padded(length, tiling.multiple)))
            useful, waste = 0, 0
        useful, wasted = useful + length**2, waste
        group_D[document], place_D[document] = len(groups) - 1, groups[-1].documents
        groups[-1] = replace(groups[-1], documents=groups[-1].documents + 1)
    start_G, width_G = _starts([g.documents * g.keys for g in groups]), np.array([g.keys for g in groups], np.int64)
    group_C = group_D[document_C]
    home_C = start_G[group_C] + place_D[document_C] * width_G[group_C] + position_C
    slots_S = np.zeros(sum(g.documents * g.keys for g in groups), np.int64)
    slots_S[home_C] = np.arange(len(home_C))
    return KeyLayout(tuple(groups), tiling, slots_S, home_C, group_D, place_D)


def query_layout(keys: KeyLayout, document_Q: np.ndarray, position_Q: np.ndarray, window: int = 0) -> Layout:
    """Cut the queries of one step into tiles. Every query's document has keys up to the query's position.

    `window`: as of `blocks`. Its tiles still compute all keys up to the last query, and hide those before it.
    """
    query_block, multiple = keys.tiling.query_block, keys.tiling.multiple
    order = np.lexsort((position_Q, document_Q))
    counts_D = np.bincount(document_Q, minlength=len(keys.group_D))
    rank_Q = np.empty(len(order), np.int64)
    rank_Q[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts_D) - counts_D, counts_D)
    longest_G = np.zeros(len(keys.groups), np.int64)
    np.maximum.at(longest_G, keys.group_D[keys.group_D >= 0], counts_D[keys.group_D >= 0])
    blocks_G = -(-longest_G // query_block)
    first_G = _starts(blocks_G)
    group_Q, block_Q = keys.group_D[document_Q], rank_Q // query_block
    tile_Q = first_G[group_Q] + block_Q
    seen_B = np.zeros(int(blocks_G.sum()), np.int64)
    np.maximum.at(seen_B, tile_Q, position_Q + 1)
    tiles = tuple(
        Tile(
            group,
            min(query_block, _padded(int(longest_G[group]) - block * query_block, multiple)),
            _padded(int(seen_B[first_G[group] + block]), multiple),
        )
        for group in range(len(keys.groups))
        for block in range(blocks_G[group])
    )
    sizes = [t.queries * keys.groups[t.group].documents for t in tiles]
    width_B = np.array([t.queries for t in tiles], np.int64)
    home_Q = _starts(sizes)[tile_Q] + keys.place_D[document_Q] * width_B[tile_Q] + rank_Q - block_Q * query_block
    slots_S, positions_S = np.zeros(sum(sizes), np.int64), np.full(sum(sizes), -1)
    slots_S[home_Q], positions_S[home_Q] = np.arange(len(home_Q)), position_Q
    return Layout(keys.groups, tiles, keys.slots_S, keys.home_C, slots_S, positions_S, home_Q, window)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _starts(sizes: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))[:-1]]).astype(np.int64)
