"""In: logits of a chunk of rows. Out: Triton sweeps: loss, metrics and gradient over the logits; the teacher's figures.

One program per row, a loop over blocks of the vocabulary, so any vocabulary goes; what a row's later loops read again
comes from the cache. Statistics are float32, offsets int64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _top(x, at, best, best_at):
    """Per lane: the largest so far and where, the first on ties."""
    higher = x > best
    return tl.where(higher, x, best), tl.where(higher, at, best_at)


@triton.jit
def _first(best, best_at):
    """Over the lanes: where the largest is, the lowest on ties."""
    return tl.min(tl.where(best == tl.max(best, 0), best_at, 2147483647), 0)


@triton.jit
def _swept(row, width, V_BLOCK: tl.constexpr):
    """logsumexp and argmax of one row."""
    lanes = tl.arange(0, V_BLOCK)
    top = tl.max(tl.load(row + lanes, mask=lanes < width, other=-float("inf")).to(tl.float32), 0)
    total = tl.zeros([V_BLOCK], tl.float32)
    best, best_at = tl.full([V_BLOCK], -float("inf"), tl.float32), tl.zeros([V_BLOCK], tl.int32)
    for start in range(0, width, V_BLOCK):
        at = start + lanes
        x = tl.load(row + at, mask=at < width, other=-float("inf")).to(tl.float32)
        best, best_at = _top(x, at, best, best_at)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.exp(x - new_top)
        top = new_top
    return top + tl.log(tl.sum(total, 0)), _first(best, best_at)


@triton.jit
def loss_kernel(
    logits, taught, teacher_index, lse_full, lse_draft, ce_weight, acceptance_weight, ce, acceptance, top, width,
    logits_stride, taught_stride, KIND: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """`KIND` "none": figures alone; "ce", "alpha", "lambda": the gradient over the logits too, with its weights."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * logits_stride
    teacher = tl.load(teacher_index + index).to(tl.int64)
    target = taught + teacher * taught_stride
    full, draft = tl.load(lse_full + teacher), tl.load(lse_draft + teacher)
    ratio = tl.exp(draft - full)  # a kept token's share of all tokens over its share of the kept ones
    lse, best_at = _swept(row, width, V_BLOCK)
    lanes = tl.arange(0, V_BLOCK)
    crossed, accepted = tl.zeros([V_BLOCK], tl.float32), tl.zeros([V_BLOCK], tl.float32)
    share = tl.zeros([V_BLOCK], tl.float32)
    weight = 0.0
    if KIND == "ce" or KIND == "lambda":
        weight = tl.load(ce_weight + index)
    for start in range(0, width, V_BLOCK):
        at = start + lanes
        live = at < width
        x = tl.load(row + at, mask=live, other=-float("inf")).to(tl.float32)
        z = tl.load(target + at, mask=live, other=-float("inf")).to(tl.float32)
        q, p = tl.exp(x - lse), tl.exp(z - draft)
        whole = p * ratio
        crossed += tl.where(live, p * (lse - x), 0.0)
        accepted += tl.minimum(whole, q)
        if KIND == "ce":
            tl.store(row + at, (weight * (q - p)).to(logits.dtype.element_ty), mask=live)
        elif KIND != "none":
            share += tl.where(whole > q, q, tl.where(whole == q, 0.5 * q, 0.0))
    overlap = tl.sum(accepted, 0)
    tl.store(ce + index, tl.sum(crossed, 0))
    tl.store(acceptance + index, overlap)
    tl.store(top + index, best_at.to(tl.int64))
    if KIND == "alpha" or KIND == "lambda":
        mean = tl.sum(share, 0)
        pull = tl.load(acceptance_weight + index)
        for start in range(0, width, V_BLOCK):
            at = start + lanes
            live = at < width
            x = tl.load(row + at, mask=live, other=-float("inf")).to(tl.float32)
            z = tl.load(target + at, mask=live, other=-float("inf")).to(tl.float32)
            q, p = tl.exp(x - lse), tl.exp(z - draft)
            whole = p * ratio
            side = tl.where(whole > q, 1.0, tl.where(whole == q, 0.5, 0.0))
            grad = q * (side - mean)
            if KIND == "alpha":  # no element is above acceptance: divide two tiny numbers, then weigh
                grad = tl.where(overlap > 0, grad / tl.where(overlap > 0, overlap, 1.0), 0.0) * pull
            else:
                grad = grad * pull + weight * (q - p)
            tl.store(row + at, grad.to(logits.dtype.element_ty), mask=live)


@triton.jit
def teacher_kernel(
    logits, kept, draft, lse_full, lse_draft, top, vocab, width, logits_stride, draft_stride, V_BLOCK: tl.constexpr
):
    """logsumexp and argmax of the full row; its kept columns into `draft`, and their logsumexp."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * logits_stride
    full, best_at = _swept(row, vocab, V_BLOCK)
    tl.store(lse_full + index, full)
    tl.store(top + index, best_at.to(tl.int64))
    lanes = tl.arange(0, V_BLOCK)
    highest, total = full * 0.0 - 1.0e30, tl.zeros([V_BLOCK], tl.float32)
    for start in range(0, width, V_BLOCK):
        at = start + lanes
        live = at < width
        z = tl.load(row + tl.load(kept + at, mask=live, other=0), mask=live, other=-float("inf"))
        tl.store(draft + index * draft_stride + at, z, mask=live)
        wide = z.to(tl.float32)
        new_highest = tl.maximum(highest, tl.max(wide, 0))
        total = total * tl.exp(highest - new_highest) + tl.exp(wide - new_highest)
        highest = new_highest
    tl.store(lse_draft + index, highest + tl.log(tl.sum(total, 0)))
