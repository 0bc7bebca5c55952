"""In: qkv [Q, P, d]. Out: q, k, v apart, q and k rotated in float32; or, backwards, their gradients side by side.

One program per row and block of heads. Legend: N query heads, G key-value heads, P = N + 2G, h half of a head.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split_rotate_kernel(
    qkv, q, k, v, cos, sin,
    N: tl.constexpr, G: tl.constexpr, h: tl.constexpr, BP: tl.constexpr, Bh: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """`BACKWARD`: q, k, v hold gradients and qkv is written, turned the other way."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BP + tl.arange(0, BP)
    at = tl.arange(0, Bh)
    inside = (at < h)[None, :]
    there = (head < N + 2 * G)[:, None] & inside
    is_q, is_k, is_v = head < N, (head >= N) & (head < N + G), head >= N + G
    whole = qkv + (row * (N + 2 * G) + head)[:, None] * 2 * h + at[None, :]
    part_q = q + (row * N + head)[:, None] * 2 * h + at[None, :]
    part_k = k + (row * G + head - N)[:, None] * 2 * h + at[None, :]
    part_v = v + (row * G + head - N - G)[:, None] * 2 * h + at[None, :]
    in_q, in_k, in_v = is_q[:, None] & inside, is_k[:, None] & inside, is_v[:, None] & there
    c = tl.load(cos + row * h + at, mask=at < h, other=1.0)[None, :]
    s = tl.load(sin + row * h + at, mask=at < h, other=0.0)[None, :]
    c = tl.where(is_v[:, None], 1.0, c)
    s = tl.where(is_v[:, None], 0.0, s)
    if BACKWARD:
        low = tl.load(part_q, mask=in_q, other=0.0).to(tl.float32)
        low += tl.load(part_k, mask=in_k, other=0.0).to(tl.float32)
        low += tl.load(part_v, mask=in_v, other=0.0).to(tl.float32)
        high = tl.load(part_q + h, mask=in_q, other=0.0).to(tl.float32)
        high += tl.load(part_k + h, mask=in_k, other=0.0).to(tl.float32)
        high += tl.load(part_v + h, mask=in_v, other=0.0).to(tl.float32)
        tl.store(whole, (low * c + high * s).to(qkv.dtype.element_ty), mask=there)
        tl.store(whole + h, (high * c - low * s).to(qkv.dtype.element_ty), mask=there)
    else:
        low = tl.load(whole, mask=there, other=0.0).to(tl.float32)
        high = tl.load(whole + h, mask=there, other=0.0).to(tl.float32)
        first = (low * c - high * s).to(qkv.dtype.element_ty)
        second = (high * c + low * s).to(qkv.dtype.element_ty)
        tl.store(part_q, first, mask=in_q)
        tl.store(part_q + h, second, mask=in_q)
        tl.store(part_k, first, mask=in_k)
        tl.store(part_k + h, second, mask=in_k)
        tl.store(part_v, first, mask=in_v)
        tl.store(part_v + h, second, mask=in_v)
