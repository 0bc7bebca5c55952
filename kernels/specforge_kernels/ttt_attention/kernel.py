"""In: queries, keys and values of one TTT step. Out: the Triton kernels of its attention and of its gradients.

Forward and dQ: one program per query block and head. dK_0, dV_0: one per key block and key-value head, which loops over
the heads of its group, with scores transposed so that P and dS go into the next matmul from registers. dK_i, dV_i: one
per few rows and key-value head. No atomics. Scores are in base 2. Blocks that every query sees whole take no mask.
What a loop reads lies block after block, so that the copy engine can fetch it: keys as they come, and for dK_0, dV_0
what `sort_kernel` lays out: queries, dout, lse, delta and position by slot, where a slot without a query has
lse inf (its P is 0). `TMA`: those are tensor descriptors.
Legend: N heads, G key-value heads, D key width, E value width, BD and BE the same padded, BM queries, BN keys, S slots
(lse and delta are [N, S], position is [1, S]).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(pointers, live, at, width: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """[rows, block] of row pointers; zero past `width`, and where not `live` if `masked`."""
    full = pointers[:, None] + at[None, :]
    if masked:
        if width == block:
            return tl.load(full, mask=live[:, None], other=0.0)
        return tl.load(full, mask=live[:, None] & (at < width)[None, :], other=0.0)
    if width == block:
        return tl.load(full)
    return tl.load(full, mask=(at < width)[None, :], other=0.0)


@triton.jit
def _block(
    source, first, column, stride, there, at, width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr,
    masked: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """[rows, block] of `source` from row `first` on. By descriptor: unmasked, what it does not hold is 0."""
    if TMA:
        found = source.load([first, column])
    else:
        index = tl.cast(first, tl.int64) + tl.arange(0, rows)
        found = _load(source + index * stride + column, there, at, width, block, masked)
    return found


@triton.jit
def _store(pointers, live, at, width: tl.constexpr, value):
    tl.store(
        pointers[:, None] + at[None, :],
        value.to(pointers.dtype.element_ty),
        mask=live[:, None] & (at < width)[None, :],
    )


@triton.jit
def _task(tasks, index):
    task = tasks + index * 6
    return (
        tl.load(task).to(tl.int32),
        tl.load(task + 1).to(tl.int32),
        tl.load(task + 2),
        tl.load(task + 3).to(tl.int32),
        tl.load(task + 4).to(tl.int32),
        tl.load(task + 5).to(tl.int32),
    )


@triton.jit
def _seen(positions, keys, window):
    """[queries, keys] or, from positions [1, ..] and keys [.., 1], transposed."""
    return (keys <= positions) & ((window == 0) | (keys > positions - window))


@triton.jit
def _forward_blocks(
    query, acc, total, top, positions, k, v, base, kv, start, end, window, scale, k_stride, v_stride,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
    masked: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    for first in range(start, end, BN):
        keys = first + tl.arange(0, BN)
        there = keys < end
        key = _block(k, base + first, kv * D, k_stride, there, at_d, D, BD, BN, masked, TMA)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if masked:
            visible = _seen(positions[:, None], keys[None, :], window) & there[None, :]
            score = tl.where(visible, score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
        p = tl.exp2(score * scale - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        value = _block(v, base + first, kv * E, v_stride, there, at_e, E, BE, BN, masked, TMA)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(value.dtype), value, acc, input_precision=PRECISION)
        top = new_top
    return acc, total, top


@triton.jit(do_not_specialize=["suffix", "suffix_rows", "window"])
def forward_kernel(
    q, k, v, own_k, own_v, out, lse, query_rows, query_positions, tasks,
    q_stride, k_stride, v_stride, suffix, suffix_rows, window, scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    begin, end, key_base, low, high, full = _task(tasks, tl.program_id(0) // SPLIT)
    kv = head // (N // G)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    slot = begin + (tl.program_id(0) % SPLIT) * BM + tl.arange(0, BM)
    live = slot < end
    rows = tl.load(query_rows + slot, mask=live, other=0)
    positions = tl.load(query_positions + slot, mask=live, other=-1).to(tl.int32)
    query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True)
    base = key_base.to(tl.int32)
    top = tl.full([BM], -1.0e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BE], tl.float32)
    cut = low + tl.maximum(full - low, 0) // BN * BN
    acc, total, top = _forward_blocks(
        query, acc, total, top, positions, k, v, base, kv, low, cut, window, scale, k_stride, v_stride,
        D, E, BD, BE, BN, False, PRECISION, TMA,
    )  # fmt: skip
    acc, total, top = _forward_blocks(
        query, acc, total, top, positions, k, v, base, kv, cut, high, window, scale, k_stride, v_stride,
        D, E, BD, BE, BN, True, PRECISION, TMA,
    )  # fmt: skip
    for i in range(suffix):
        # read again: held over the loops above it would take registers from them
        query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True)
        at = (tl.cast(i, tl.int64) * suffix_rows + rows) * G + kv
        key = _load(own_k + at * D, live, at_d, D, BD, True)
        value = _load(own_v + at * E, live, at_e, E, BE, True)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
        new_top = tl.maximum(top, score)
        p = tl.exp2(score - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + p
        acc = acc * shrink[:, None] + p[:, None] * value.to(tl.float32)
        top = new_top
    total = tl.where(live, total, 1.0)
    _store(out + (rows * N + head) * E, live, at_e, E, acc / total[:, None])
    tl.store(lse + rows * N + head, top + tl.log2(total), mask=live)


@triton.jit(do_not_specialize=["slots"])
def sort_kernel(
    q, out, do, lse, query_rows, query_positions, sorted_q, sorted_do, sorted_lse, delta, places, slots, q_stride,
    N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Queries, dout, lse, delta = sum(out * dout) over a head's width and position by slot, a multiple of BM."""
    head = tl.program_id(1)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    slot = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = tl.load(query_rows + slot)
    live = rows >= 0
    query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True)
    grad = _load(do + (rows * N + head) * E, live, at_e, E, BE, True)
    result = _load(out + (rows * N + head) * E, live, at_e, E, BE, True)
    row_lse = tl.load(lse + rows * N + head, mask=live, other=float("inf"))
    home, place = slot.to(tl.int64) * N + head, tl.cast(head, tl.int64) * slots + slot
    there = slot < slots
    _store(sorted_q + home * D, there, at_d, D, query)
    _store(sorted_do + home * E, there, at_e, E, grad)
    if head == 0:
        tl.store(places + slot, tl.load(query_positions + slot).to(tl.int32))
    tl.store(sorted_lse + place, row_lse)
    tl.store(delta + place, tl.sum(grad.to(tl.float32) * result.to(tl.float32), 1))


@triton.jit
def _dq_blocks(
    query, grad, acc, row_lse, row_delta, positions, k, v, base, kv, start, end, window, scale, k_stride, v_stride,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
    masked: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    for first in range(start, end, BN):
        keys = first + tl.arange(0, BN)
        there = keys < end
        key = _block(k, base + first, kv * D, k_stride, there, at_d, D, BD, BN, masked, TMA)
        value = _block(v, base + first, kv * E, v_stride, there, at_e, E, BE, BN, masked, TMA)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        pull = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
        p = tl.exp2(score * scale - row_lse[:, None])
        if masked:
            p = tl.where(_seen(positions[:, None], keys[None, :], window) & there[None, :], p, 0.0)
        ds = p * (pull - row_delta[:, None])
        acc = tl.dot(ds.to(key.dtype), key, acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=["suffix", "suffix_rows", "window", "slots"])
def dq_kernel(
    q, k, v, own_k, own_v, do, lse, delta, dq, query_rows, query_positions, tasks, slots,
    q_stride, k_stride, v_stride, suffix, suffix_rows, window, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    begin, end, key_base, low, high, full = _task(tasks, tl.program_id(0) // SPLIT)
    kv = head // (N // G)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    slot = begin + (tl.program_id(0) % SPLIT) * BM + tl.arange(0, BM)
    live = slot < end
    rows = tl.load(query_rows + slot, mask=live, other=0)
    positions = tl.load(query_positions + slot, mask=live, other=-1).to(tl.int32)
    query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True)
    grad = _load(do + (rows * N + head) * E, live, at_e, E, BE, True)
    place = tl.cast(head, tl.int64) * slots + slot
    row_lse = tl.load(lse + place, mask=live, other=float("inf"))
    row_delta = tl.load(delta + place, mask=live, other=0.0)
    base = key_base.to(tl.int32)
    acc = tl.zeros([BM, BD], tl.float32)
    cut = low + tl.maximum(full - low, 0) // BN * BN
    acc = _dq_blocks(
        query, grad, acc, row_lse, row_delta, positions, k, v, base, kv, low, cut, window, scale, k_stride,
        v_stride, D, E, BD, BE, BN, False, PRECISION, TMA,
    )  # fmt: skip
    acc = _dq_blocks(
        query, grad, acc, row_lse, row_delta, positions, k, v, base, kv, cut, high, window, scale, k_stride,
        v_stride, D, E, BD, BE, BN, True, PRECISION, TMA,
    )  # fmt: skip
    for i in range(suffix):
        query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True)
        grad = _load(do + (rows * N + head) * E, live, at_e, E, BE, True)
        at = (tl.cast(i, tl.int64) * suffix_rows + rows) * G + kv
        key = _load(own_k + at * D, live, at_d, D, BD, True).to(tl.float32)
        value = _load(own_v + at * E, live, at_e, E, BE, True).to(tl.float32)
        p = tl.exp2(tl.sum(query.to(tl.float32) * key, 1) * scale - row_lse)
        ds = p * (tl.sum(grad.to(tl.float32) * value, 1) - row_delta)
        acc += ds[:, None] * key
    _store(dq + (rows * N + head) * D, live, at_d, D, acc * out_scale)


@triton.jit
def _dkv_blocks(
    key, value, key_acc, value_acc, q, do, lse, delta, places, keys, head, start, end, window, scale, slots,
    N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr,
    masked: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    for first in range(start, end, BM):
        slot = first + tl.arange(0, BM)
        live = slot < slots
        query = _block(q, first, head * D, N * D, live, at_d, D, BD, BM, False, TMA)
        grad = _block(do, first, head * E, N * E, live, at_e, E, BE, BM, False, TMA)
        row_lse = _figures(lse, head, first, slots, BM, TMA)
        row_delta = _figures(delta, head, first, slots, BM, TMA)
        score = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        p = tl.exp2(score * scale - row_lse[None, :])
        if masked:
            positions = _figures(places, 0, first, slots, BM, TMA)
            p = tl.where(_seen(positions[None, :], keys[:, None], window), p, 0.0)
        value_acc = tl.dot(p.to(grad.dtype), grad, value_acc, input_precision=PRECISION)
        pull = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
        ds = p * (pull - row_delta[None, :])
        key_acc = tl.dot(ds.to(query.dtype), query, key_acc, input_precision=PRECISION)
    return key_acc, value_acc


@triton.jit
def _figures(source, head, first, slots, BM: tl.constexpr, TMA: tl.constexpr):
    """[BM] of [N, S]."""
    if TMA:
        found = tl.reshape(source.load([head, first]), [BM])
    else:
        found = tl.load(source + tl.cast(head, tl.int64) * slots + first + tl.arange(0, BM))
    return found


@triton.jit(do_not_specialize=["window", "slots"])
def dkv_kernel(
    q, k, v, do, lse, delta, places, dk, dv, tasks, slots,
    k_stride, v_stride, window, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(1)
    begin, end, place, low, high, full = _task(tasks, tl.program_id(0) // SPLIT)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    shift = (tl.program_id(0) % SPLIT) * BN + tl.arange(0, BN)
    slot = (begin + shift).to(tl.int64)
    there = slot < end
    keys = place.to(tl.int32) + shift
    key = _load(k + slot * k_stride + kv * D, there, at_d, D, BD, True)
    value = _load(v + slot * v_stride + kv * E, there, at_e, E, BE, True)
    key_acc = tl.zeros([BN, BD], tl.float32)
    value_acc = tl.zeros([BN, BE], tl.float32)
    cut = tl.minimum(low + (full - low + BM - 1) // BM * BM, high)
    for head in range(kv * (N // G), (kv + 1) * (N // G)):
        key_acc, value_acc = _dkv_blocks(
            key, value, key_acc, value_acc, q, do, lse, delta, places, keys, head, low, cut, window, scale,
            slots, N, D, E, BD, BE, BM, True, PRECISION, TMA,
        )  # fmt: skip
        key_acc, value_acc = _dkv_blocks(
            key, value, key_acc, value_acc, q, do, lse, delta, places, keys, head, cut, high, window, scale,
            slots, N, D, E, BD, BE, BM, False, PRECISION, TMA,
        )  # fmt: skip
    _store(dk + (slot * G + kv) * D, there, at_d, D, key_acc * out_scale)
    _store(dv + (slot * G + kv) * E, there, at_e, E, value_acc)


@triton.jit(do_not_specialize=["slots", "suffix", "suffix_rows"])
def own_kernel(
    q, own_k, own_v, do, lse, delta, dk, dv, query_rows, slots, q_stride, suffix, suffix_rows, scale, out_scale,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BM: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Gradients of the suffix; `ADD`: onto what dk and dv hold (each row is one program's, so the order is fixed)."""
    kv = tl.program_id(1)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    slot = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = tl.load(query_rows + slot)
    live = rows >= 0
    for i in range(suffix):
        at = (tl.cast(i, tl.int64) * suffix_rows + rows) * G + kv
        key = _load(own_k + at * D, live, at_d, D, BD, True).to(tl.float32)
        value = _load(own_v + at * E, live, at_e, E, BE, True).to(tl.float32)
        key_acc = tl.zeros([BM, BD], tl.float32)
        value_acc = tl.zeros([BM, BE], tl.float32)
        for head in range(kv * (N // G), (kv + 1) * (N // G)):
            query = _load(q + rows * q_stride + head * D, live, at_d, D, BD, True).to(tl.float32)
            grad = _load(do + (rows * N + head) * E, live, at_e, E, BE, True).to(tl.float32)
            place = tl.cast(head, tl.int64) * slots + slot
            row_lse, row_delta = tl.load(lse + place), tl.load(delta + place)
            p = tl.exp2(tl.sum(query * key, 1) * scale - row_lse)
            ds = p * (tl.sum(grad * value, 1) - row_delta)
            key_acc += ds[:, None] * query
            value_acc += p[:, None] * grad
        key_acc = key_acc * out_scale
        if ADD:
            key_acc += _load(dk + at * D, live, at_d, D, BD, True).to(tl.float32)
            value_acc += _load(dv + at * E, live, at_e, E, BE, True).to(tl.float32)
        _store(dk + at * D, live, at_d, D, key_acc)
        _store(dv + at * E, live, at_e, E, value_acc)
