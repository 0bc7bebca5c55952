"""In: `DraftSettings`. Out: `Eagle3Draft`, the one-layer EAGLE3 draft (EAGLE-3, arXiv 2503.01840), EAGLE3.1 included.

Legend: B rows of a decode batch, S new positions, T cache entries, Q rows, C captured width (three layers), H hidden,
N heads, G key-value heads, D head width, d draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from specforge_kernels.split_rotate import rotate
from torch import nn

from specforge.runtime.draft.layers import MLP, NO_TIES, RMSNorm, Rotary, linear
from specforge.runtime.draft.ties import Ties, added
from specforge.settings import DraftSettings

FUSED_LAYERS = 3


class DraftCache:
    """Keys and values of one decode batch, [B, G, T, D] each, append-only."""

    def __init__(self) -> None:
        self._length = 0
        self._keys_BGTD: torch.Tensor | None = None
        self._values_BGTD: torch.Tensor | None = None

    def __len__(self) -> int:
        return self._length

    def append(self, keys_BGSD: torch.Tensor, values_BGSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add S entries; all T+S keys and values back. Storage doubles, so appending costs what is appended."""
        end = self._length + keys_BGSD.shape[2]
        self._keys_BGTD = _grown(self._keys_BGTD, keys_BGSD, end)
        self._values_BGTD = _grown(self._values_BGTD, values_BGSD, end)
        self._keys_BGTD[:, :, self._length : end] = keys_BGSD
        self._values_BGTD[:, :, self._length : end] = values_BGSD
        self._length = end
        return self._keys_BGTD[:, :, :end], self._values_BGTD[:, :, :end]


def _grown(old_BGTD: torch.Tensor | None, new_BGSD: torch.Tensor, length: int) -> torch.Tensor:
    if old_BGTD is not None and old_BGTD.shape[2] >= length:
        return old_BGTD
    batch, kv_heads, _, width = new_BGSD.shape
    grown_BGTD = new_BGSD.new_empty(batch, kv_heads, 2 * length, width)
    if old_BGTD is not None:
        grown_BGTD[:, :, : old_BGTD.shape[2]] = old_BGTD
    return grown_BGTD


class Attention(nn.Module):
    """The projections of the decoder layer. Input: normed embedding and normed hidden, side by side (2H)."""

    def __init__(self, settings: DraftSettings) -> None:
        super().__init__()
        hidden, width = settings.hidden_size, settings.head_dim
        self.q_proj = linear(2 * hidden, settings.num_heads * width)
        self.k_proj = linear(2 * hidden, settings.num_kv_heads * width)
        self.v_proj = linear(2 * hidden, settings.num_kv_heads * width)
        self.o_proj = linear(settings.num_heads * width, hidden)

    def input_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """q, k and v weights below each other, [(N+2G)·D, H] for the embedding half and for the hidden half."""
        joined = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        embedding, hidden = joined.chunk(2, dim=1)
        return embedding, hidden


class DecoderLayer(nn.Module):
    """r = hidden; h = r + o(attention([norm(embedding), norm(hidden)])); out = h + mlp(norm(h))."""

    def __init__(self, settings: DraftSettings) -> None:
        super().__init__()
        hidden, eps = settings.hidden_size, settings.rms_norm_eps
        self.self_attn = Attention(settings)
        self.mlp = MLP(hidden, settings.intermediate_size, settings.hidden_act)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor, ties: Ties = NO_TIES) -> torch.Tensor:
        """What follows the attention: `residual` [..., H] un-normed, `attended` [..., N·D] -> [..., H]."""
        rows = residual.flatten(0, -2)
        hidden = added(rows, attended.flatten(0, -2), ties.of(self.self_attn.o_proj.weight)).view(residual.shape)
        return self.mlp(hidden, self.post_attention_layernorm, ties)


class Eagle3Draft(nn.Module):
    """Weights named as SGLang and transformers read them; `embed_tokens` is the target's, frozen.

    Freshly made, weights are not initialised: use `init_draft`, or load a state_dict. Until a vocabulary map is set
    the draft ids are the first ids of the target. `norm_output`: the next draft step is fed the state after the final
    norm (EAGLE3.1, arXiv 2605.09992), else the one before it; `logits` sees it normed exactly once either way.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor

    def __init__(self, settings: DraftSettings) -> None:
        super().__init__()
        hidden, eps = settings.hidden_size, settings.rms_norm_eps
        self.settings = settings
        self.embed_tokens = nn.utils.skip_init(nn.Embedding, settings.vocab_size, hidden)
        self.embed_tokens.requires_grad_(False)
        self.fc = linear(FUSED_LAYERS * settings.target_hidden_size, hidden)
        if settings.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(settings.target_hidden_size, eps) for _ in range(FUSED_LAYERS))
        self.midlayer = DecoderLayer(settings)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = linear(hidden, settings.draft_vocab_size)
        self.rotary = Rotary(settings)
        self.register_buffer("d2t", torch.zeros(settings.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(settings.vocab_size) < settings.draft_vocab_size)

    @property
    def kept_ids_d(self) -> torch.Tensor:
        """Target id of every draft id, int64 [d], ascending."""
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def use(self, rms_norm: str, swiglu: str) -> None:
        """Which implementation norms and MLP run: "triton", "torch" or "auto", which is theirs until this is called."""
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.implementation = rms_norm
            elif isinstance(module, MLP):
                module.implementation = swiglu

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        return draft_ids + self.d2t[draft_ids]

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """[..., C] captured states of three layers -> [..., H], in the weights' dtype."""
        aux = aux.to(self.fc.weight.dtype)
        if self.settings.fc_norm:
            thirds = aux.chunk(FUSED_LAYERS, dim=-1)
            aux = torch.cat([norm(third) for norm, third in zip(self.fc_norm, thirds, strict=True)], dim=-1)
        return self.fc(aux)

    def feedback(self, out: torch.Tensor) -> torch.Tensor:
        """The layer's output [..., H] as the next step, and `logits`, take it."""
        return self.norm(out) if self.settings.norm_output else out

    def head_input(self, fed: torch.Tensor) -> torch.Tensor:
        """What `feedback` returned, normed exactly once."""
        return fed if self.settings.norm_output else self.norm(fed)

    def logits(self, fed: torch.Tensor) -> torch.Tensor:
        """[..., d] from what `extend` returned."""
        return self.lm_head(self.head_input(fed))

    def extend(
        self,
        hidden_BSH: torch.Tensor,
        tokens_BS: torch.Tensor,
        positions_BS: torch.Tensor,
        cache: DraftCache,
        visible_BST: torch.Tensor,
    ) -> torch.Tensor:
        """One decode step: appends S keys and values to `cache`, returns what the next step is fed, [B, S, H].

        `visible_BST` (bool, T with the S new entries): what each query may attend; every query sees at least one.
        """
        settings, layer = self.settings, self.midlayer
        batch, count, _ = hidden_BSH.shape
        hidden_BSH = hidden_BSH.to(self.fc.weight.dtype)
        embedded_BSH = layer.input_layernorm(self.embed_tokens(tokens_BS).to(hidden_BSH.dtype))
        joined = torch.cat([embedded_BSH, layer.hidden_norm(hidden_BSH)], dim=-1)
        projections = layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj
        q, k, v = (p(joined).view(batch, count, -1, settings.head_dim) for p in projections)
        cos, sin = self.rotary(positions_BS)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, values = cache.append(k.transpose(1, 2), v.transpose(1, 2))
        # Heads repeated here: with enable_gqa and a mask no fused kernel applies.
        keys, values = (x.repeat_interleave(settings.num_heads // settings.num_kv_heads, dim=1) for x in (keys, values))
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=visible_BST[:, None])
        return self.feedback(layer.finish(hidden_BSH, attended.transpose(1, 2).flatten(2)))


def init_draft(settings: DraftSettings, seed: int) -> Eagle3Draft:
    """float32 masters: matrices normal(0, initializer_range), norms one. The same on every machine and torch thread
    count; no global generator is touched. The embedding is drawn last; a run replaces it by the target's.
    """
    draft = Eagle3Draft(settings)
    generator = torch.Generator().manual_seed(seed)
    drawn = [(name, p) for name, p in draft.named_parameters() if p.dim() == 2]
    with torch.no_grad():
        for _, parameter in sorted(drawn, key=lambda item: item[0] == "embed_tokens.weight"):
            parameter.normal_(0.0, settings.initializer_range, generator=generator)
    return draft
