"""In: queries, keys, values and `Blocks`. Out: attention and LSE in Triton, and its gradients, without atomics.

Forward and dQ: one program per query task and head. dK_0, dV_0: one per key task and key-value head, which loops over
the heads of its group. dK_i, dV_i: one per query task and key-value head. Scores are in base 2.
Legend: Q query rows, C key rows, N heads, G key-value heads, d key width, e value width, k suffix steps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from specforge_kernels.ttt_attention.blocks import KEY_BLOCK, QUERY_BLOCK, Blocks

LOG2_E = 1.4426950408889634


@triton.jit
def _row(base, rows, stride, head, width: tl.constexpr, block: tl.constexpr, live):
    """[rows, block] of one head of rows of [.., heads, width]; zero where not `live` and past `width`."""
    at = tl.arange(0, block)
    return tl.load(
        base + rows[:, None].to(tl.int64) * stride + head * width + at[None, :],
        mask=live[:, None] & (at < width)[None, :],
        other=0.0,
    )


@triton.jit
def _put(base, rows, stride, head, width: tl.constexpr, block: tl.constexpr, live, value):
    at = tl.arange(0, block)
    tl.store(
        base + rows[:, None].to(tl.int64) * stride + head * width + at[None, :],
        value.to(base.dtype.element_ty),
        mask=live[:, None] & (at < width)[None, :],
    )


@triton.jit
def _seen(positions, keys, end, window):
    seen = (keys[None, :] <= positions[:, None]) & (keys < end)[None, :]
    return seen & ((window == 0) | (keys[None, :] > positions[:, None] - window))


@triton.jit(do_not_specialize=["suffix", "suffix_rows", "window"])
def forward_kernel(
    q, k, v, own_k, own_v, out, lse, query_rows, query_positions, key_rows, tasks,
    q_stride, k_stride, v_stride, suffix, suffix_rows, window, scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    task = tasks + tl.program_id(0) * 5
    first, end, key_base, low, high = (
        tl.load(task), tl.load(task + 1), tl.load(task + 2), tl.load(task + 3), tl.load(task + 4),
    )  # fmt: skip
    kv = head // (N // G)
    slot = first + tl.arange(0, BM)
    live = slot < end
    rows = tl.load(query_rows + slot, mask=live, other=0)
    positions = tl.load(query_positions + slot, mask=live, other=-1)
    query = _row(q, rows, q_stride, head, D, BD, live)
    top = tl.full([BM], -1.0e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BE], tl.float32)
    for start in range(low, high, BN):
        keys = start + tl.arange(0, BN)
        there = keys < high
        at = tl.load(key_rows + key_base + keys, mask=there, other=0)
        key = _row(k, at, k_stride, kv, D, BD, there)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(_seen(positions, keys, high, window), score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        value = _row(v, at, v_stride, kv, E, BE, there)
        acc = acc * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
        top = new_top
    for i in range(suffix):
        step = tl.cast(i, tl.int64) * suffix_rows
        key = _row(own_k + step * G * D, rows, G * D, kv, D, BD, live)
        value = _row(own_v + step * G * E, rows, G * E, kv, E, BE, live)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
        new_top = tl.maximum(top, score)
        p = tl.exp2(score - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + p
        acc = acc * shrink[:, None] + p[:, None] * value.to(tl.float32)
        top = new_top
    _put(out, rows, N * E, head, E, BE, live, acc / total[:, None])
    tl.store(lse + rows.to(tl.int64) * N + head, top + tl.log2(total), mask=live)


@triton.jit(do_not_specialize=["suffix", "suffix_rows", "window"])
def dq_kernel(
    q, k, v, own_k, own_v, do, lse, delta, dq, query_rows, query_positions, key_rows, tasks,
    q_stride, k_stride, v_stride, suffix, suffix_rows, window, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    task = tasks + tl.program_id(0) * 5
    first, end, key_base, low, high = (
        tl.load(task), tl.load(task + 1), tl.load(task + 2), tl.load(task + 3), tl.load(task + 4),
    )  # fmt: skip
    kv = head // (N // G)
    slot = first + tl.arange(0, BM)
    live = slot < end
    rows = tl.load(query_rows + slot, mask=live, other=0)
    positions = tl.load(query_positions + slot, mask=live, other=-1)
    query = _row(q, rows, q_stride, head, D, BD, live)
    grad = _row(do, rows, N * E, head, E, BE, live)
    at_row = rows.to(tl.int64) * N + head
    row_lse = tl.load(lse + at_row, mask=live, other=0.0)
    row_delta = tl.load(delta + at_row, mask=live, other=0.0)
    acc = tl.zeros([BM, BD], tl.float32)
    for start in range(low, high, BN):
        keys = start + tl.arange(0, BN)
        there = keys < high
        at = tl.load(key_rows + key_base + keys, mask=there, other=0)
        key = _row(k, at, k_stride, kv, D, BD, there)
        value = _row(v, at, v_stride, kv, E, BE, there)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(_seen(positions, keys, high, window), score, -float("inf"))
        p = tl.exp2(score - row_lse[:, None])
        ds = p * (tl.dot(grad, tl.trans(value), input_precision=PRECISION) - row_delta[:, None])
        acc += tl.dot(ds.to(key.dtype), key, input_precision=PRECISION)
    for i in range(suffix):
        step = tl.cast(i, tl.int64) * suffix_rows
        key = _row(own_k + step * G * D, rows, G * D, kv, D, BD, live).to(tl.float32)
        value = _row(own_v + step * G * E, rows, G * E, kv, E, BE, live).to(tl.float32)
        p = tl.exp2(tl.sum(query.to(tl.float32) * key, 1) * scale - row_lse)
        ds = p * (tl.sum(grad.to(tl.float32) * value, 1) - row_delta)
        acc += ds[:, None] * key
    _put(dq, rows, N * D, head, D, BD, live, acc * out_scale)


@triton.jit(do_not_specialize=["window"])
def dkv_kernel(
    q, k, v, do, lse, delta, dk, dv, query_rows, query_positions, key_rows, tasks,
    q_stride, k_stride, v_stride, window, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(1)
    task = tasks + tl.program_id(0) * 5
    first, end, place, low, high = (
        tl.load(task), tl.load(task + 1), tl.load(task + 2), tl.load(task + 3), tl.load(task + 4),
    )  # fmt: skip
    slot = first + tl.arange(0, BN)
    there = slot < end
    at = tl.load(key_rows + slot, mask=there, other=0)
    keys = place + tl.arange(0, BN)
    key = _row(k, at, k_stride, kv, D, BD, there)
    value = _row(v, at, v_stride, kv, E, BE, there)
    key_acc = tl.zeros([BN, BD], tl.float32)
    value_acc = tl.zeros([BN, BE], tl.float32)
    for start in range(low, high, BM):
        asked = start + tl.arange(0, BM)
        live = asked < high
        rows = tl.load(query_rows + asked, mask=live, other=0)
        positions = tl.load(query_positions + asked, mask=live, other=-1)
        seen = _seen(positions, keys, place + end - first, window)
        for head in range(kv * (N // G), (kv + 1) * (N // G)):
            query = _row(q, rows, q_stride, head, D, BD, live)
            grad = _row(do, rows, N * E, head, E, BE, live)
            at_row = rows.to(tl.int64) * N + head
            row_lse = tl.load(lse + at_row, mask=live, other=0.0)
            row_delta = tl.load(delta + at_row, mask=live, other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            p = tl.exp2(tl.where(seen, score, -float("inf")) - row_lse[:, None])
            value_acc += tl.dot(tl.trans(p.to(grad.dtype)), grad, input_precision=PRECISION)
            ds = p * (tl.dot(grad, tl.trans(value), input_precision=PRECISION) - row_delta[:, None])
            key_acc += tl.dot(tl.trans(ds.to(query.dtype)), query, input_precision=PRECISION)
    _put(dk, at, G * D, kv, D, BD, there, key_acc * out_scale)
    _put(dv, at, G * E, kv, E, BE, there, value_acc)


@triton.jit(do_not_specialize=["suffix", "suffix_rows"])
def own_kernel(
    q, own_k, own_v, do, lse, delta, dk, dv, query_rows, tasks, q_stride, suffix, suffix_rows, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(1)
    task = tasks + tl.program_id(0) * 5
    slot = tl.load(task) + tl.arange(0, BM)
    live = slot < tl.load(task + 1)
    rows = tl.load(query_rows + slot, mask=live, other=0)
    for i in range(suffix):
        step = tl.cast(i, tl.int64) * suffix_rows
        key = _row(own_k + step * G * D, rows, G * D, kv, D, BD, live).to(tl.float32)
        value = _row(own_v + step * G * E, rows, G * E, kv, E, BE, live).to(tl.float32)
        key_acc = tl.zeros([BM, BD], tl.float32)
        value_acc = tl.zeros([BM, BE], tl.float32)
        for head in range(kv * (N // G), (kv + 1) * (N // G)):
            query = _row(q, rows, q_stride, head, D, BD, live).to(tl.float32)
            grad = _row(do, rows, N * E, head, E, BE, live).to(tl.float32)
            at_row = rows.to(tl.int64) * N + head
            row_lse = tl.load(lse + at_row, mask=live, other=0.0)
            row_delta = tl.load(delta + at_row, mask=live, other=0.0)
            p = tl.exp2(tl.sum(query * key, 1) * scale - row_lse)
            ds = p * (tl.sum(grad * value, 1) - row_delta)
            key_acc += ds[:, None] * query
            value_acc += p[:, None] * grad
        _put(dk + step * G * D, rows, G * D, kv, D, BD, live, key_acc * out_scale)
        _put(dv + step * G * E, rows, G * E, kv, E, BE, live, value_acc)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Rows may be apart, the heads of one row may not."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


class TritonAttention(torch.autograd.Function):
    """apply(query_QNd, key_CGd, value_CGe, own_keys_kQGd, own_values_kQGe, Blocks) -> out [Q, N, e], lse [Q, N].

    lse: natural logarithm, float32, not differentiable. `own_*`: None at step 0; may have more rows than Q.
    """

    @staticmethod
    def forward(ctx: Any, query, key, value, own_keys, own_values, blocks: Blocks):  # type: ignore[no-untyped-def]
        query, key, value = _packed(query), _packed(key), _packed(value)
        (count, heads, width), wide = query.shape, value.shape[2]
        out, lse = query.new_empty(count, heads, wide), query.new_empty(count, heads, dtype=torch.float32)
        ctx.shape = _shape(query, value)
        steps, rows = (0, 0) if own_keys is None else own_keys.shape[:2]
        ctx.suffix = (steps, rows)
        own = (query, query) if own_keys is None else (own_keys.contiguous(), own_values.contiguous())
        grid = (len(blocks.query_tasks_M5), heads)
        forward_kernel[grid](
            query, key, value, *own, out, lse, blocks.query_rows_Q, blocks.query_positions_Q, blocks.key_rows_C,
            blocks.query_tasks_M5, query.stride(0), key.stride(0), value.stride(0), steps, rows, blocks.window,
            LOG2_E * width**-0.5, BM=QUERY_BLOCK, BN=KEY_BLOCK, PRECISION="ieee", **ctx.shape,
        )  # fmt: skip
        ctx.blocks = blocks
        ctx.save_for_backward(query, key, value, *own, out, lse)
        natural = lse / LOG2_E
        ctx.mark_non_differentiable(natural)
        return out, natural

    @staticmethod
    def backward(ctx: Any, grad, _):  # type: ignore[no-untyped-def]
        query, key, value, own_keys, own_values, out, lse = ctx.saved_tensors
        blocks, (steps, rows) = ctx.blocks, ctx.suffix
        grad = grad.contiguous()
        delta = (grad.float() * out.float()).sum(-1)
        (count, heads, width), kv_heads = query.shape, key.shape[1]
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
        scales = (LOG2_E * width**-0.5, width**-0.5)
        strides = (query.stride(0), key.stride(0), value.stride(0))
        index = (blocks.query_rows_Q, blocks.query_positions_Q, blocks.key_rows_C)
        tiles = {"BM": QUERY_BLOCK, "BN": KEY_BLOCK, "PRECISION": "ieee", **ctx.shape}
        dq_kernel[(len(blocks.query_tasks_M5), heads)](
            query, key, value, own_keys, own_values, grad, lse, delta, dq, *index, blocks.query_tasks_M5, *strides,
            steps, rows, blocks.window, *scales, **tiles,
        )  # fmt: skip
        dkv_kernel[(len(blocks.key_tasks_N5), kv_heads)](
            query, key, value, grad, lse, delta, dk, dv, *index, blocks.key_tasks_N5, *strides, blocks.window,
            *scales, **tiles,
        )  # fmt: skip
        if steps == 0:
            return dq, dk, dv, None, None, None
        dk_own, dv_own = torch.empty_like(own_keys), torch.empty_like(own_values)
        if rows > count:
            dk_own[:, count:], dv_own[:, count:] = 0, 0
        own_kernel[(len(blocks.query_tasks_M5), kv_heads)](
            query, own_keys, own_values, grad, lse, delta, dk_own, dv_own, blocks.query_rows_Q,
            blocks.query_tasks_M5, query.stride(0), steps, rows, *scales, BM=QUERY_BLOCK, **ctx.shape,
        )  # fmt: skip
        return dq, dk, dv, dk_own, dv_own, None


def _shape(query: torch.Tensor, value: torch.Tensor) -> dict[str, int]:
    (_, heads, width), (_, kv_heads, wide) = query.shape, value.shape
    padded = [max(16, triton.next_power_of_2(n)) for n in (width, wide)]
    return {"N": heads, "G": kv_heads, "D": width, "E": wide, "BD": padded[0], "BE": padded[1]}
