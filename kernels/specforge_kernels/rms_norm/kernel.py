"""In: rows [R, H]. Out: x * rsqrt(mean(x²) + eps), rounded, times the weight; gradients, the weight's in parts."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_kernel(x, weight, out, scale, eps, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    live = at < H
    value = tl.load(x + row * H + at, mask=live, other=0.0).to(tl.float32)
    by = 1.0 / tl.sqrt(tl.sum(value * value, 0) / H + eps)
    tl.store(scale + row, by)
    w = tl.load(weight + at, mask=live, other=0.0).to(tl.float32)
    normed = (value * by).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * H + at, (normed * w).to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows", "each"])
def backward_kernel(grad, x, weight, scale, grad_x, parts, rows, each, H: tl.constexpr, BLOCK: tl.constexpr):
    """Program p takes rows p·each .. and writes its sum for the weight to parts[p]: the order is fixed."""
    at = tl.arange(0, BLOCK)
    live = at < H
    w = tl.load(weight + at, mask=live, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0) * each
    for row in range(first, tl.minimum(first + each, rows)):
        place = tl.cast(row, tl.int64) * H
        value = tl.load(x + place + at, mask=live, other=0.0).to(tl.float32)
        g = tl.load(grad + place + at, mask=live, other=0.0).to(tl.float32)
        by = tl.load(scale + row)
        normed = value * by
        total += g * normed
        pull = tl.sum(g * w * normed, 0) / H
        tl.store(grad_x + place + at, ((g * w - normed * pull) * by).to(grad_x.dtype.element_ty), mask=live)
    tl.store(parts + tl.program_id(0).to(tl.int64) * H + at, total, mask=live)
