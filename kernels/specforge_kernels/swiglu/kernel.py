"""In: gate and up, flat. Out: silu(gate) * up, and the gradients with the product made again; float32 within.

`count` is specialised: only whether it is a multiple of 16 matters, and with that loads are 16 bytes wide.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product_kernel(gate, up, product, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    g = tl.load(gate + at, mask=live, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=live, other=0.0).to(tl.float32)
    tl.store(product + at, (g / (1.0 + tl.exp(-g)) * u).to(product.dtype.element_ty), mask=live)


@triton.jit
def gradient_kernel(gate, up, grad, product, grad_gate, grad_up, count, BLOCK: tl.constexpr):
    """`grad`: of the product."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    g = tl.load(gate + at, mask=live, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=live, other=0.0).to(tl.float32)
    d = tl.load(grad + at, mask=live, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-g))
    act = g * share
    tl.store(product + at, (act * u).to(product.dtype.element_ty), mask=live)
    tl.store(grad_up + at, (d * act).to(grad_up.dtype.element_ty), mask=live)
    slope = share * (1.0 + g * (1.0 - share))
    tl.store(grad_gate + at, (d * u * slope).to(grad_gate.dtype.element_ty), mask=live)
