"""In: tensors of one TTT step and `Blocks`. Out: the Triton kernels of kernel.py as a differentiable function.

Legend: Q query rows, C key rows, N query heads, G key-value heads, d key width, e value width, k suffix steps.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import torch

from specforge_kernels.ttt_attention.blocks import KEY_BLOCK, QUERY_BLOCK, Blocks
from specforge_kernels.ttt_attention.kernel import dkv_kernel, dq_kernel, forward_kernel, own_kernel, sort_kernel
from specforge_kernels.ttt_attention.own_pairs import Buffers

TensorDescriptor: Any = None
with suppress(ImportError):  # before Triton 3.4
    from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634
OWN_ROWS, SORT_ROWS = 16, 32
WIDEST = 256


# queries, keys, warps, stages by padded head width: on Hopper and later, and (of at most 99 KB) before
TILES = {
    "forward": {64: (64, 128, 4, 3), 128: (64, 64, 4, 3), 256: (128, 64, 8, 2)},
    "dq": {64: (64, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 2)},
    "dkv": {64: (64, 64, 4, 3), 128: (64, 64, 4, 2), 256: (32, 64, 4, 2)},
}
SMALL_TILES = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 32, 4, 2)}
SMALL_DKV = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (32, 64, 4, 2)}


def tiles(kernel: str, widest: int, like: torch.Tensor) -> dict[str, int]:
    """Block sizes and launch options of `kernel` for the padded head width; the task block is SPLIT blocks."""
    wide = 64 if widest <= 64 else 128 if widest <= 128 else WIDEST
    if like.element_size() > 2:  # float32 is for tests
        queries, keys, warps, stages = (64, 32, 4, 1) if kernel != "dkv" else (32, 64, 4, 1)
    elif _has_copy_engine(like.device):
        queries, keys, warps, stages = TILES[kernel][wide]
    else:
        queries, keys, warps, stages = (SMALL_DKV if kernel == "dkv" else SMALL_TILES)[wide]
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
    launch = tiles("forward", max(ctx.shape["BD"], ctx.shape["BE"]), query)
    fetched, keys = _fetched((key, value), launch["BN"], (ctx.shape["BD"], ctx.shape["BE"]))
    with _on(query):
        forward_kernel[(len(blocks.query_tasks_M6) * launch["SPLIT"], heads)](
            query, *keys, *own, out, lse, blocks.query_rows_S, blocks.query_positions_S, blocks.query_tasks_M6,
            query.stride(0), key.stride(0), value.stride(0), *suffix, blocks.window, LOG2_E * width**-0.5,
            PRECISION="ieee", TMA=fetched, **ctx.shape, **launch,
        )  # fmt: skip
    return query, key, value, out, lse


def _backward(ctx: Any, grads, saved, own, suffix, total):  # type: ignore[no-untyped-def]
    """dQ, dK_0, dV_0 from the gradients of out and (or None) lse; those of the own pairs are added to `total`."""
    grad, grad_lse = grads
    query, key, value, out, lse = saved
    blocks, shape, grad = ctx.blocks, ctx.shape, grad.contiguous()
    (_, heads, width), kv_heads, slots = query.shape, key.shape[1], len(blocks.query_rows_S)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    laid = [query.new_empty(slots, heads, x.shape[2]) for x in (query, value)]
    figures = *lse.new_empty(2, heads, slots).unbind(0), lse.new_empty(1, slots, dtype=torch.int32)
    scales, strides = (LOG2_E * width**-0.5, width**-0.5), (key.stride(0), value.stride(0))
    padded, index = (shape["BD"], shape["BE"]), (blocks.query_rows_S, blocks.query_positions_S)
    with _on(query):
        sort_kernel[(slots // SORT_ROWS, heads)](
            query, out, grad, lse, *index, *laid, *figures, slots, query.stride(0), BM=SORT_ROWS,
            **{name: size for name, size in shape.items() if name != "G"},
        )  # fmt: skip
        if grad_lse is not None:
            # d lse / d score is the softmax, which meets delta too; slots without a query take any row's
            figures[1].sub_(grad_lse[blocks.query_rows_S.clamp(min=0)].t())
        launch = tiles("dq", max(padded), query)
        fetched, keys = _fetched((key, value), launch["BN"], padded)
        dq_kernel[(len(blocks.query_tasks_M6) * launch["SPLIT"], heads)](
            query, *keys, *own, grad, *figures[:2], dq, *index, blocks.query_tasks_M6, slots, query.stride(0), *strides,
            *suffix, blocks.window, *scales, PRECISION="ieee", TMA=fetched, **shape, **launch,
        )  # fmt: skip
        launch = tiles("dkv", max(padded), query)
        fetched, asking = _fetched(laid, launch["BM"], padded)
        lines = [TensorDescriptor(x, x.shape, x.stride(), [1, launch["BM"]]) for x in figures] if fetched else figures
        dkv_kernel[(len(blocks.key_tasks_N6) * launch["SPLIT"], kv_heads)](
            asking[0], key, value, asking[1], *lines, dk, dv, blocks.key_tasks_N6, slots, *strides, blocks.window,
            *scales, PRECISION="ieee", TMA=fetched, **shape, **launch,
        )  # fmt: skip
        if total is not None:
            own_kernel[(slots // OWN_ROWS, kv_heads)](
                query, *own, grad, *figures[:2], *total, blocks.query_rows_S, slots, query.stride(0), *suffix, *scales,
                BM=OWN_ROWS, ADD=True, **shape,
            )  # fmt: skip
    return dq, dk, dv


def _fetched(pair, rows: int, widths: tuple[int, int]):  # type: ignore[no-untyped-def]
    """(True, descriptors of blocks of `rows`) where the copy engine can fetch from both tensors, else (False, they)."""
    if TensorDescriptor is None or not all(map(_fetchable, pair)):
        return False, pair
    sizes = [((len(x), x.shape[1] * x.shape[2]), (x.stride(0), 1)) for x in pair]
    return True, tuple(TensorDescriptor(x, *size, [rows, w]) for x, size, w in zip(pair, sizes, widths, strict=True))


def _fetchable(x: torch.Tensor) -> bool:
    steps = (x.data_ptr(), x.stride(0) * x.element_size(), x.shape[2] * x.element_size())
    return len(x) > 0 and not any(step % 16 for step in steps) and (not x.is_cuda or _has_copy_engine(x.device))


@functools.cache
def _has_copy_engine(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


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
