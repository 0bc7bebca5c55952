"""In: a target and token ids. Out: hidden states and logits, with an append-only KV cache.

Legend: B rows, S new tokens, T cache entries, V vocabulary, H target hidden size, C captured width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import attrs
import torch
from torch.nn import functional
from transformers import DynamicCache

from specforge.runtime.decode.visibility import Visibility
from specforge.runtime.target import TargetModel

ATTENTIONS = {"full_attention", "sliding_attention"}


@attrs.frozen(eq=False)
class Seen:
    """What one forward gave: `last_BSH`, post-norm, and `aux_BSC`, the captured layers concatenated (None: none)."""

    last_BSH: torch.Tensor
    aux_BSC: torch.Tensor | None


class CachedTarget:
    """The target over one batch of rows. Use it in a `with` block: its hooks live as long as the block.

    `layers`: the decoder layers whose outputs are wanted; id i is the output of layer i. After every `forward`
    comes one `commit`, which says which of the new entries stand.
    """

    def __init__(self, target: TargetModel, layers: Sequence[int], rows: int) -> None:
        self.decoder, self.head_VH = target.decoder, target.head_VH
        self.layers = tuple(layers)
        self.after_head = target.settings.geometry.logits
        self.config = target.model.config.get_text_config()
        # Without a config every layer keeps all its entries; the masks do the windowing.
        self.cache = DynamicCache()
        self.visibility = Visibility(rows, target.device)
        self.positions_BT = torch.zeros(rows, 0, dtype=torch.long, device=target.device)
        self.cache_argument = _cache_argument(self.decoder)
        self.windowed = _windowed(self.config)
        self.outputs: dict[int, torch.Tensor] = {}
        self.hooks: list[Any] = []

    def __enter__(self) -> CachedTarget:
        for layer in set(self.layers):
            self.hooks.append(self.decoder.layers[layer].register_forward_hook(self._keep(layer)))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _keep(self, layer: int) -> Any:
        def hook(module: torch.nn.Module, arguments: Any, output: Any) -> None:
            self.outputs[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    def forward(self, tokens_BS: torch.Tensor, positions_BS: torch.Tensor) -> Seen:
        """One forward of S new tokens per row."""
        self.positions_BT = torch.cat([self.positions_BT, positions_BS], dim=1)
        last_BSH = self.decoder(
            input_ids=tokens_BS,
            position_ids=positions_BS,
            attention_mask=self._masks(self.visibility.block(tokens_BS.shape[1]), positions_BS),
            use_cache=True,
            **{self.cache_argument: self.cache},
        ).last_hidden_state
        aux_BSC = torch.cat([self.outputs[layer] for layer in self.layers], dim=-1) if self.layers else None
        self.outputs.clear()
        return Seen(last_BSH, aux_BSC)

    def logits(self, last_BSH: torch.Tensor) -> torch.Tensor:
        """[B, S, V], in the model's dtype."""
        logits_BSV = functional.linear(last_BSH, self.head_VH)
        if self.after_head.scale != 1:
            logits_BSV = logits_BSV * self.after_head.scale
        if self.after_head.softcap is not None:
            logits_BSV = torch.tanh(logits_BSV / self.after_head.softcap) * self.after_head.softcap
        return logits_BSV

    def commit(self, stands_BS: torch.Tensor) -> None:
        """Keep the entries of the last forward where True; hide the others from their row for ever."""
        self.visibility.append(stands_BS)

    def _masks(self, visible_BST: torch.Tensor, positions_BS: torch.Tensor) -> Any:
        full = self._additive(visible_BST)
        if not self.windowed:
            return full
        near_BST = self.positions_BT[:, None, :] > positions_BS[:, :, None] - self.config.sliding_window
        sliding = self._additive(visible_BST & near_BST)
        if self.windowed == "all":
            return sliding
        return {"full_attention": full, "sliding_attention": sliding}

    def _additive(self, visible_BST: torch.Tensor) -> torch.Tensor:
        """[B, 1, S, T+S] in the model's dtype: 0 where visible, else the dtype's least value."""
        dtype = self.head_VH.dtype
        mask = torch.zeros(visible_BST.shape, dtype=dtype, device=visible_BST.device)
        return mask.masked_fill_(~visible_BST, torch.finfo(dtype).min)[:, None]


def _cache_argument(decoder: torch.nn.Module) -> str:
    """transformers 5.24 renames `past_key_values` to `cache`; 5.17 has the old name only."""
    return "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"


def _windowed(config: Any) -> str:
    """Which layers attend in a sliding window: "" none, "all", or "some". ValueError for attention we cannot mask."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - ATTENTIONS:
        raise ValueError(
            f"{config.model_type}: layers of type {', '.join(sorted(kinds - ATTENTIONS))} cannot be decoded "
            "speculatively here: only full and sliding-window attention can hide rejected tokens"
        )
    if getattr(config, "sliding_window", None) is None:
        return ""
    if not kinds or kinds == {"sliding_attention"}:
        return "all" if getattr(config, "use_sliding_window", True) else ""
    return "some" if "sliding_attention" in kinds else ""
