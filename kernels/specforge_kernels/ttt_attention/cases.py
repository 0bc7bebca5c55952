"""In: nothing. Out: the shapes that the test and the bench run, and fresh random inputs for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specforge_kernels.ttt_attention.layout import Layout, key_layout, query_layout
from specforge_kernels.ttt_attention.reference import Rows

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


@dataclass(frozen=True)
class Case:
    """`lengths`: key rows per document. `share`: of them that ask. `suffix`: k, steps before this one.

    `window`: 0 for all keys before.
    """

    lengths: tuple[int, ...]
    share: float = 1.0
    suffix: int = 0
    heads: int = 4
    kv_heads: int = 2
    key_width: int = 8
    value_width: int = 8
    window: int = 0


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments of the op (all five tensors or lists, gradients wanted), with the rows and their layout."""

    tensors: tuple
    rows: Rows
    layout: Layout

    @property
    def leaves(self) -> list[torch.Tensor]:
        query, key, value, suffix_keys, suffix_values = self.tensors
        return [query, key, value, *suffix_keys, *suffix_values]


SMALL = {
    "one row": Case((1,)),
    "one row, with a suffix": Case((1,), suffix=3),
    "one document": Case((9,), suffix=2),
    "several documents": Case((9, 1, 5, 6), 0.6, 2),
    "few queries": Case((30, 2, 7), 0.1, 1),
    "very different lengths": Case((300, 5, 4, 1, 280), 0.3, 1),
    "several tiles": Case((1100, 530), 0.95, 2, heads=2, kv_heads=1),
    "one head": Case((7, 3), heads=1, kv_heads=1, suffix=2),
    "no grouping": Case((7, 3), heads=3, kv_heads=3, suffix=2),
    "one key-value head": Case((7, 3), heads=6, kv_heads=1, suffix=2),
    "wide values": Case((7, 3), key_width=6, value_width=10, suffix=2),
    "narrow values": Case((7, 3), key_width=12, value_width=4, suffix=2),
    "six steps before": Case((13, 8), 0.7, 6),
    "a window": Case((13, 3, 8), 0.7, 2, window=4),
    "a window of the row alone": Case((13, 3), 0.7, 1, window=1),
}
BENCH = {
    "SmolLM2, 4 documents of 300": Case((300,) * 4, 0.8, 3, 9, 3, 64, 64),
    "SmolLM2, 8 documents of 400": Case((400,) * 8, 0.8, 3, 9, 3, 64, 64),
    "Llama-3-8B, one document of 2048": Case((2048,), 1.0, 3, 32, 8, 128, 128),
}


def inputs(case: Case, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Inputs:
    """Queries are the last rows of their documents, in random order, as keys are. Suffix tensors have spare rows."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    document = np.repeat(np.arange(len(case.lengths)), case.lengths)
    position = np.concatenate([np.arange(n) for n in case.lengths])
    asks = position >= np.array(case.lengths)[document] * (1 - case.share)
    asks[-1] = True
    keys, queries = rng.permutation(len(document)), rng.permutation(np.flatnonzero(asks))

    def made(rows: int, heads: int, width: int) -> torch.Tensor:
        x = torch.randn(rows, heads, width, generator=generator, dtype=torch.float64)
        return x.to(dtype).to(device).requires_grad_()

    count, spare = len(queries), 2
    tensors = (
        made(count, case.heads, case.key_width),
        made(len(keys), case.kv_heads, case.key_width),
        made(len(keys), case.kv_heads, case.value_width),
        [made(count + spare, case.kv_heads, case.key_width) for _ in range(case.suffix)],
        [made(count + spare, case.kv_heads, case.value_width) for _ in range(case.suffix)],
    )
    indices = (document[queries], position[queries], document[keys], position[keys])
    layout = query_layout(key_layout(document[keys], position[keys]), document[queries], position[queries], case.window)
    return Inputs(tensors, Rows(*(torch.from_numpy(i).to(device) for i in indices), case.window), layout.to(device))
