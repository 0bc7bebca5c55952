"""In: tensors of one TTT step and `Blocks`. Out: the Triton kernels of kernel.py as a differentiable function.

Legend: Q query rows, C key rows, N query heads, G key-value heads, d key width, e value width, k suffix steps.
"""

from __future__ import annotations

from typing import Any

import torch

from specforge_kernels.ttt_attention.blocks import KEY_BLOCK, QUERY_BLOCK, Blocks
from specforge_kernels.ttt_attention.kernel import delta_kernel, dkv_kernel, dq_kernel, forward_kernel, own_kernel
from specforge_kernels.ttt_attention.own_pairs import Buffers

LOG2_E = 1.4426950408889634
OWN_ROWS, DELTA_ROWS = 16, 32
WIDEST = 256


def tiles(kernel: str, widest: int, itemsize: int) -> dict[str, int]:
    """Block sizes and launch options of `kernel` for the padded head width; the task block is SPLIT blocks."""
    if itemsize > 2:  # float32 is for tests
        queries, keys, warps, stages = (64, 32, 4, 1) if kernel != "dkv" else (32, 64, 4, 1)
    elif kernel == "forward":
        queries, keys, warps, stages = 128, 64 if widest > 64 else 128, 8, 3 if widest <= 128 else 2
    elif kernel == "dq":
        queries, keys, warps, stages = (128, 64, 8, 2) if widest <= 128 else (64, 64, 8, 1)
    else:
        queries, keys, warps, stages = (64, 128, 8, 2) if widest <= 128 else (32, 64, 8, 2)
    split = KEY_BLOCK // keys if kernel == "dkv" else QUERY_BLOCK // queries
    return {"BM": queries, "BN": keys, "SPLIT": split, "num_warps": warps, "num_stages": stages}


class TritonUnrolled(torch.autograd.Function):
    """apply(query_QNd, key_CGd, value_CGe, Blocks, Buffers, *OwnPairs.tokens) -> out [Q, N, e]: one step of an unroll.

    As TritonAttention; the own pairs are read, and their gradients added, where `Buffers` holds them.
    """

    @staticmethod
    def forward(ctx: Any, query, key, value, blocks: Blocks, pairs: Buffers, *tokens):  # type: ignore[no-untyped-def]
        own = (pairs.keys_kQGd, pairs.values_kQGe)
        ctx.blocks, ctx.pairs, ctx.steps = blocks, pairs, len(tokens)
        saved = _forward(ctx, query, key, value, own, (len(tokens), own[0].shape[1]))
        ctx.save_for_backward(*saved)
        return saved[3]

    @staticmethod
    def backward(ctx: Any, grad):  # type: ignore[no-untyped-def]
        pairs, steps = ctx.pairs, ctx.steps
        own, total = (pairs.keys_kQGd, pairs.values_kQGe), pairs.gradients() if steps else None
        grads = _backward(ctx, (grad, None), ctx.saved_tensors, own, (steps, own[0].shape[1]), total)
        return *grads, None, None, *(grad.new_empty(0) for _ in range(steps))


class TritonAttention(torch.autograd.Function):
    """apply(query_QNd, key_CGd, value_CGe, own_keys_kQGd, own_values_kQGe, Blocks) -> out [Q, N, e], lse [Q, N].

    Keys in the order of `Blocks`. lse: natural logarithm, float32. `own_*`: None at step 0; may have more rows than Q.
    Every query row must have a task.
    """

    @staticmethod
    def forward(ctx: Any, query, key, value, own_keys, own_values, blocks: Blocks):  # type: ignore[no-untyped-def]
        steps = (0, 0) if own_keys is None else tuple(own_keys.shape[:2])
        own = (query, query) if own_keys is None else (own_keys.contiguous(), own_values.contiguous())
        ctx.blocks, ctx.suffix = blocks, steps
        saved = _forward(ctx, query, key, value, own, steps)
        ctx.save_for_backward(*saved, *own)
        ctx.set_materialize_grads(False)
        return saved[3], saved[4] / LOG2_E

    @staticmethod
    def backward(ctx: Any, grad, grad_lse):  # type: ignore[no-untyped-def]
        *saved, own_keys, own_values = ctx.saved_tensors
        steps, grad = ctx.suffix, torch.zeros_like(saved[3]) if grad is None else grad
        total = (torch.zeros_like(own_keys), torch.zeros_like(own_values)) if steps[0] else None
        grads = _backward(ctx, (grad, grad_lse), saved, (own_keys, own_values), steps, total)
        return *grads, *(total or (None, None)), None


def _forward(ctx: Any, query, key, value, own, suffix):  # type: ignore[no-untyped-def]
    """(query, key, value, out, lse in base 2) after the forward kernel."""
    query, key, value = _packed(query), _packed(key), _packed(value)
    (count, heads, width), wide, blocks = query.shape, value.shape[2], ctx.blocks
    out, lse = query.new_empty(count, heads, wide), query.new_empty(count, heads, dtype=torch.float32)
    ctx.shape = _shape(query, value)
    launch = tiles("forward", max(ctx.shape["BD"], ctx.shape["BE"]), query.element_size())
    with _on(query):
        forward_kernel[(len(blocks.query_tasks_M6) * launch["SPLIT"], heads)](
            query, key, value, *own, out, lse, blocks.query_rows_Q, blocks.query_positions_Q, blocks.query_tasks_M6,
            query.stride(0), key.stride(0), value.stride(0), *suffix, blocks.window, LOG2_E * width**-0.5,
            PRECISION="ieee", **ctx.shape, **launch,
        )  # fmt: skip
    return query, key, value, out, lse


def _backward(ctx: Any, grads, saved, own, suffix, total):  # type: ignore[no-untyped-def]
    """dQ, dK_0, dV_0 from the gradients of out and (or None) lse; those of the own pairs are added to `total`."""
    grad, grad_lse = grads
    query, key, value, out, lse = saved
    blocks, shape, grad = ctx.blocks, ctx.shape, grad.contiguous()
    (count, heads, width), kv_heads = query.shape, key.shape[1]
    delta = torch.empty_like(lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    scales, strides = (LOG2_E * width**-0.5, width**-0.5), (query.stride(0), key.stride(0), value.stride(0))
    widest, index = max(shape["BD"], shape["BE"]), (blocks.query_rows_Q, blocks.query_positions_Q)
    with _on(query):
        delta_kernel[(-(-count * heads // DELTA_ROWS),)](
            out, grad, delta, count * heads, E=shape["E"], BE=shape["BE"], BM=DELTA_ROWS
        )
        if grad_lse is not None:
            delta -= grad_lse  # d lse / d score is the softmax, which delta is multiplied by
        launch = tiles("dq", widest, query.element_size())
        dq_kernel[(len(blocks.query_tasks_M6) * launch["SPLIT"], heads)](
            query, key, value, *own, grad, lse, delta, dq, *index, blocks.query_tasks_M6, *strides, *suffix,
            blocks.window, *scales, PRECISION="ieee", **shape, **launch,
        )  # fmt: skip
        launch = tiles("dkv", widest, query.element_size())
        dkv_kernel[(len(blocks.key_tasks_N6) * launch["SPLIT"], kv_heads)](
            query, key, value, grad, lse, delta, dk, dv, *index, blocks.key_tasks_N6, *strides, blocks.window,
            *scales, PRECISION="ieee", **shape, **launch,
        )  # fmt: skip
        if total is not None:
            own_kernel[(-(-count // OWN_ROWS), kv_heads)](
                query, *own, grad, lse, delta, *total, count, query.stride(0), *suffix, *scales, BM=OWN_ROWS,
                ADD=True, **shape,
            )  # fmt: skip
    return dq, dk, dv


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Rows may be apart, the heads of one row may not."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _on(x: torch.Tensor) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else torch.autograd.profiler.record_function("ttt_attention")


def _shape(query: torch.Tensor, value: torch.Tensor) -> dict[str, int]:
    (_, heads, width), (_, kv_heads, wide) = query.shape, value.shape
    padded = [max(16, 1 << (n - 1).bit_length()) for n in (width, wide)]
    return {"N": heads, "G": kv_heads, "D": width, "E": wide, "BD": padded[0], "BE": padded[1]}
