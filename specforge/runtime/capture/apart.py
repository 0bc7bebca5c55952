"""In: queries, keys and values of documents laid end to end. Out: causal attention inside each, registered by name.

transformers hands keywords of a model's forward on to its attention function: so `document_lengths` arrives here.
Legend: N heads, G key-value heads, R rows of all documents, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "specforge_documents_apart"
# layers whose visibility `attend` knows; what others do is in a mask that it never sees
LAYER_KINDS = {"full_attention", "sliding_attention"}


def attend(
    module: torch.nn.Module, query_1NRD: Any, key_1GRD: Any, value_1GRD: Any, attention_mask: Any, **given: Any
) -> tuple[torch.Tensor, None]:
    """[1, R, N, D]: a row attends to rows of its own document before it, and to itself.

    `given`: `document_lengths`, and of the target's own `scaling` and `sliding_window`. ValueError for a `softcap` of
    the scores, which no fused attention has.
    """
    if given.get("softcap") is not None:
        raise ValueError(f"its scores are soft-capped at {given['softcap']:g}")
    lengths, window = list(given["document_lengths"]), given.get("sliding_window")
    parts = [tensor.split(lengths, dim=2) for tensor in (query_1NRD, key_1GRD, value_1GRD)]
    attended = []
    for query, key, value in zip(*parts, strict=True):
        band = None if window is None or query.shape[2] <= window else _band(query, window)
        attended.append(
            scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=band,
                is_causal=band is None,
                scale=given.get("scaling"),
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


@contextmanager
def documents_apart(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the attention of `model` is `attend`. Raises ValueError for a model that cannot take another."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def unknown_layers(kinds: Sequence[str] | None) -> list[str]:
    """The kinds of a config's `layer_types` that `attend` does not know."""
    return sorted(set(kinds or ()) - LAYER_KINDS)


def _band(query: torch.Tensor, window: int) -> torch.Tensor:
    """bool [T, T]: the last `window` rows up to and with the row itself."""
    row = torch.arange(query.shape[2], device=query.device)
    behind = row[:, None] - row
    return (behind >= 0) & (behind < window)


AttentionInterface.register(NAME, attend)
