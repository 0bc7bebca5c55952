"""In: queries, keys and values of a TTT step, and their layout. Out: its attention, with gradients, whole or in parts.

Plain PyTorch: batched matmuls over documents of similar length. Scores live in float32 for one tile at a time and are
computed again in the backward pass, so memory grows with the rows, not with their square.
Legend: Q query rows, C key rows, N query heads, G key-value heads, d key width, e value width, k suffix steps,
S padded slots, B a tile's documents times G, X its query slots times N/G.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from specforge_kernels.ttt_attention.blocks import Blocks
from specforge_kernels.ttt_attention.layout import Layout, Tile
from specforge_kernels.ttt_attention.own_pairs import OwnPairs

with suppress(ImportError):  # where there is no Triton
    from specforge_kernels.ttt_attention.launch import TritonAttention, TritonUnrolled


def ttt_attention(
    query_QNd: torch.Tensor,
    key_CGd: torch.Tensor,
    value_CGe: torch.Tensor,
    suffix_keys: Sequence[torch.Tensor] | OwnPairs,
    suffix_values: Sequence[torch.Tensor] | OwnPairs,
    layout: Layout | Blocks,
) -> torch.Tensor:
    """out [Q, N, e] of the formula in reference.py, scale 1/sqrt(d); softmax in float32 or wider.

    `suffix_keys[i]` [at least Q, G, d] and `suffix_values[i]` [at least Q, G, e]: row r belongs to query r; empty at
    step 0. `layout`, on the same device: from `query_layout`, or from `blocks`; then the Triton kernels run, and keys
    and values are in the order of documents and positions. With `blocks` the
    suffix may be an `OwnPairs`, given as both. Nothing here waits for the device.
    """
    if isinstance(suffix_keys, OwnPairs):
        return TritonUnrolled.apply(query_QNd, key_CGd, value_CGe, layout, suffix_keys.buffers, *suffix_keys.tokens)
    return ttt_attention_part(query_QNd, key_CGd, value_CGe, suffix_keys, suffix_values, layout)[0]


def ttt_attention_part(
    query_QNd: torch.Tensor,
    key_CGd: torch.Tensor,
    value_CGe: torch.Tensor,
    suffix_keys: Sequence[torch.Tensor],
    suffix_values: Sequence[torch.Tensor],
    layout: Layout | Blocks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ttt_attention` and its logsumexp over a part of what its queries see: out [Q, N, e], lse [Q, N].

    Both are differentiable, so `merged` parts have the gradients of the whole, as a sequence-parallel run needs them.
    lse: natural logarithm of the sum over exp(scores), float32 or wider. The own pairs belong to one of the parts.
    """
    count = query_QNd.shape[0]
    if isinstance(layout, Blocks):
        own = [torch.stack([x[:count] for x in xs]) if xs else None for xs in (suffix_keys, suffix_values)]
        return TritonAttention.apply(query_QNd, key_CGd, value_CGe, *own, layout)
    suffix_QGkd = suffix_QGke = None
    if suffix_keys:
        suffix_QGkd = torch.stack([k[:count] for k in suffix_keys], dim=2)
        suffix_QGke = torch.stack([v[:count] for v in suffix_values], dim=2)
    return _Attention.apply(query_QNd, key_CGd, value_CGe, suffix_QGkd, suffix_QGke, layout)


def merged(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) over the keys of all parts, of the same queries each: outs weigh exp(lse - lse of all)."""
    lse_PQN = torch.stack([lse for _, lse in parts])
    lse_QN = torch.logsumexp(lse_PQN, 0)
    share_PQN = (lse_PQN - lse_QN).exp()
    out = sum(share[..., None] * out.to(share.dtype) for share, (out, _) in zip(share_PQN, parts))
    return out.to(parts[0][0].dtype), lse_QN


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_QNd: torch.Tensor,
        key_CGd: torch.Tensor,
        value_CGe: torch.Tensor,
        suffix_QGkd: torch.Tensor | None,
        suffix_QGke: torch.Tensor | None,
        layout: Layout,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tiles = _Tiles(layout, query_QNd, key_CGd, value_CGe)
        queries_S = query_QNd.index_select(0, layout.query_slots_S)
        outs, tops, sums = [], [], []
        for tile, at in tiles:
            scores_BXC = tiles.scores(tile, at, tiles.pack(tile, queries_S[at]))
            top_BX1 = scores_BXC.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores_BXC.dtype).min)
            p_BXC = scores_BXC.sub_(top_BX1).exp_()
            sums.append(tiles.unpack(tile, p_BXC.sum(-1, keepdim=True)))
            tops.append(tiles.unpack(tile, top_BX1))
            outs.append(tiles.unpack(tile, _matmul(p_BXC.to(query_QNd.dtype), tiles.values(tile))))
        home_Q = layout.query_home_Q
        out_QNe, top_QN1, sum_QN1 = (_cat(x).index_select(0, home_Q) for x in (outs, tops, sums))
        if suffix_QGkd is not None and suffix_QGke is not None:
            own_QNk = _own_scores(query_QNd, suffix_QGkd)
            new_top_QN1 = torch.maximum(top_QN1, own_QNk.amax(-1, keepdim=True))
            shrink_QN1 = (top_QN1 - new_top_QN1).exp_()
            own_QNk = own_QNk.sub_(new_top_QN1).exp_()
            top_QN1, sum_QN1 = new_top_QN1, sum_QN1 * shrink_QN1 + own_QNk.sum(-1, keepdim=True)
            out_QNe = out_QNe * shrink_QN1 + _own_matmul(own_QNk.to(query_QNd.dtype), suffix_QGke)
        out_QNe = (out_QNe / sum_QN1).to(query_QNd.dtype)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        lse_QN = (top_QN1 + sum_QN1.log()).squeeze(-1)
        ctx.save_for_backward(query_QNd, key_CGd, value_CGe, suffix_QGkd, suffix_QGke, out_QNe, lse_QN)
        return out_QNe, lse_QN

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query_QNd, key_CGd, value_CGe, suffix_QGkd, suffix_QGke, out_QNe, lse_QN = ctx.saved_tensors
        layout: Layout = ctx.layout
        dtype, lse_QN1, (grad_QNe, grad_lse_QN) = query_QNd.dtype, lse_QN[..., None], grads
        grad_QNe = torch.zeros_like(out_QNe) if grad_QNe is None else grad_QNe
        delta_QN1 = (grad_QNe.to(lse_QN1.dtype) * out_QNe).sum(-1, keepdim=True)
        if grad_lse_QN is not None:
            delta_QN1 = delta_QN1 - grad_lse_QN[..., None]
        tiles = _Tiles(layout, query_QNd, key_CGd, value_CGe)
        padded = [x.index_select(0, layout.query_slots_S) for x in (query_QNd, grad_QNe, delta_QN1, lse_QN1)]
        dq_parts, dk, dv = [], _Sums(layout), _Sums(layout)
        for tile, at in tiles:
            q_BXd, do_BXe, delta_BX1, lse_BX1 = (tiles.pack(tile, x[at]) for x in padded)
            p_BXC = tiles.scores(tile, at, q_BXd).sub_(lse_BX1).exp_()
            dv.add(tile, _matmul(p_BXC.to(dtype).mT, do_BXe))
            ds_BXC = _matmul(do_BXe, tiles.values(tile).mT).sub_(delta_BX1).mul_(p_BXC).mul_(tiles.scale).to(dtype)
            dq_parts.append(tiles.unpack(tile, _matmul(ds_BXC, tiles.keys(tile))))
            dk.add(tile, _matmul(ds_BXC.mT, q_BXd))
        dq_QNd = _cat(dq_parts).index_select(0, layout.query_home_Q)
        dk_own = dv_own = None
        if suffix_QGkd is not None:
            p_QNk = _own_scores(query_QNd, suffix_QGkd).sub_(lse_QN1).exp_()
            ds_QNk = _own_matmul(grad_QNe, suffix_QGke.mT).sub_(delta_QN1).mul_(p_QNk).mul_(tiles.scale).to(dtype)
            dq_QNd = dq_QNd + _own_matmul(ds_QNk, suffix_QGkd)
            dk_own = _own_outer(ds_QNk, query_QNd, suffix_QGkd).to(dtype)
            dv_own = _own_outer(p_QNk.to(dtype), grad_QNe, suffix_QGke).to(dtype)
        return dq_QNd.to(dtype), dk.rows(key_CGd), dv.rows(value_CGe), dk_own, dv_own, None


class _Tiles:
    """A layout's tiles over the keys and values of one call; rows of padded slots [S, N, x] to batches [B, X, x]."""

    def __init__(self, layout: Layout, query_QNd: torch.Tensor, key_CGd: torch.Tensor, value_CGe: torch.Tensor) -> None:
        self.layout, self.kv_heads, self.heads = layout, key_CGd.shape[1], query_QNd.shape[1]
        self.scale = query_QNd.shape[2] ** -0.5
        self._keys, self._values = (self._by_document(x) for x in (key_CGd, value_CGe))

    def __iter__(self) -> Iterator[tuple[Tile, slice]]:
        start = 0
        for tile in self.layout.tiles:
            size = tile.queries * self.layout.groups[tile.group].documents
            yield tile, slice(start, start + size)
            start += size

    def _by_document(self, rows_CGx: torch.Tensor) -> list[torch.Tensor]:
        padded = rows_CGx.index_select(0, self.layout.key_slots_S)
        parts = padded.split([g.documents * g.keys for g in self.layout.groups])
        return [
            part.view(g.documents, g.keys, *part.shape[1:]).transpose(1, 2).flatten(0, 1).contiguous()
            for g, part in zip(self.layout.groups, parts, strict=True)
        ]

    def keys(self, tile: Tile) -> torch.Tensor:
        return self._keys[tile.group][:, : tile.keys]

    def values(self, tile: Tile) -> torch.Tensor:
        return self._values[tile.group][:, : tile.keys]

    def pack(self, tile: Tile, slots_SNx: torch.Tensor) -> torch.Tensor:
        shape = (-1, tile.queries, self.kv_heads, self.heads // self.kv_heads, slots_SNx.shape[2])
        return slots_SNx.view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)

    def unpack(self, tile: Tile, batch_BXx: torch.Tensor) -> torch.Tensor:
        shape = (-1, self.kv_heads, self.heads // self.kv_heads, tile.queries, batch_BXx.shape[2])
        return batch_BXx.view(shape).permute(0, 3, 1, 2, 4).reshape(-1, self.heads, batch_BXx.shape[2])

    def scores(self, tile: Tile, at: slice, query_BXd: torch.Tensor) -> torch.Tensor:
        """Scaled scores in float32 or wider, -inf where a query does not see a key. A fresh tensor."""
        scores_BXC = _matmul(query_BXd, self.keys(tile).mT).mul_(self.scale)
        position = self.layout.query_positions_S[at].view(-1, 1, tile.queries, 1)
        back = position - torch.arange(tile.keys, device=position.device)
        hidden = back < 0
        if self.layout.window:
            hidden |= back >= self.layout.window
        bias = torch.zeros(hidden.shape, dtype=scores_BXC.dtype, device=position.device)
        bias.masked_fill_(hidden, float("-inf"))  # adding it is faster than a broadcast masked_fill_ over all heads
        scores_BXC.view(-1, self.heads, tile.queries, tile.keys).add_(bias)
        return scores_BXC


class _Sums:
    """Gradients of keys or values, summed over the tiles of each group and brought back to rows."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parts: list[torch.Tensor | None] = [None] * len(layout.groups)

    def add(self, tile: Tile, part_BCx: torch.Tensor) -> None:
        total = self._parts[tile.group]
        keys = self._layout.groups[tile.group].keys
        if total is None and tile.keys < keys:
            total = part_BCx.new_zeros(part_BCx.shape[0], keys, part_BCx.shape[2])
        if total is None:
            self._parts[tile.group] = part_BCx
        else:
            total[:, : tile.keys] += part_BCx
            self._parts[tile.group] = total

    def rows(self, like_CGx: torch.Tensor) -> torch.Tensor:
        _, kv_heads, width = like_CGx.shape
        slots = []
        for group, part in zip(self._layout.groups, self._parts, strict=True):
            if part is None:
                slots.append(like_CGx.new_zeros(group.documents * group.keys, kv_heads, width))
            else:
                by_key = part.view(group.documents, kv_heads, group.keys, width).transpose(1, 2)
                slots.append(by_key.to(like_CGx.dtype).reshape(-1, kv_heads, width))
        return _cat(slots).index_select(0, self._layout.key_home_C)


def _own_scores(query_QNd: torch.Tensor, suffix_QGkd: torch.Tensor) -> torch.Tensor:
    return _own_matmul(query_QNd, suffix_QGkd.mT).mul_(query_QNd.shape[2] ** -0.5)


def _own_matmul(rows_QNx: torch.Tensor, suffix_QGxy: torch.Tensor) -> torch.Tensor:
    """[Q, N, y]: each query head with its own row's suffix of its key-value head."""
    (count, heads, width), kv_heads = rows_QNx.shape, suffix_QGxy.shape[1]
    batch = rows_QNx.reshape(count * kv_heads, heads // kv_heads, width)
    return _matmul(batch, suffix_QGxy.flatten(0, 1)).view(count, heads, -1)


def _own_outer(weights_QNk: torch.Tensor, rows_QNx: torch.Tensor, like_QGkx: torch.Tensor) -> torch.Tensor:
    count, kv_heads, steps, width = like_QGkx.shape
    left = weights_QNk.reshape(count * kv_heads, -1, steps)
    return _matmul(left.mT, rows_QNx.reshape(count * kv_heads, -1, width)).view(like_QGkx.shape)


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Batched matmul with the result in float32 or wider, without rounding it on the way where the device can."""
    wide = torch.promote_types(left.dtype, torch.float32)
    if left.dtype != wide and left.is_cuda:
        return torch.bmm(left, right, out_dtype=wide)
    return torch.bmm(left.to(wide), right.to(wide))


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
