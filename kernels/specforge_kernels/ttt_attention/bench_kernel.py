"""In: a GPU. Out: times of the Triton attention beside flex_attention's and SDPA's, bfloat16, if it is right.

3 own pairs a row, as in the middle of an unroll. flex_attention does the same work on keys with the own pairs behind
them; SDPA, without own pairs, does less. FLOPs are of visible pairs: two matmuls forward and the
usual five backward, of which one computes the scores again (ours computes them twice: seven).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from specforge_kernels.measure import Ceilings, Row, backward, main, other
from specforge_kernels.ttt_attention.blocks import blocks
from specforge_kernels.ttt_attention.launch import TritonAttention
from specforge_kernels.ttt_attention.test_kernel import WIDTHS, check

HEADS = {
    "Llama-3-8B, Qwen3-8B": (32, 8, 128, 128),
    "SmolLM2": (9, 3, 64, 64),
    "DeepSeek-V3 MLA": (128, 128, 192, 128),
}
LENGTHS = {
    "one of 2048": (2048,),
    "one of 8192": (8192,),
    "one of 16384": (16384,),
    "64 of 64 to 512": tuple(int(n) for n in np.random.default_rng(0).integers(64, 513, 64)),
}
PLAIN_ONLY = ("one of 16384",)  # where flex_attention is not asked: each shape is a compilation of half a minute
STEPS = 3


def rows(ceilings: Ceilings, only: str) -> Iterator[Row]:
    for name, heads in HEADS.items():
        for length, lengths in LENGTHS.items():
            case = f"{name}: {length}"
            if only in case and not (name.startswith("DeepSeek") and length == "one of 16384"):
                yield from of_case(ceilings, case, heads, lengths, flex=length not in PLAIN_ONLY)
                torch.cuda.empty_cache()


def of_case(
    ceilings: Ceilings, case: str, shape: tuple[int, int, int, int], lengths: tuple[int, ...], flex: bool
) -> Iterator[Row]:
    heads, kv_heads, width, wide = shape
    document = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(n) for n in lengths])
    count = len(document)
    tasks = blocks(document, position, np.array(lengths)).to("cuda")

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    query, key, value = random(count, heads, width), random(count, kv_heads, width), random(count, kv_heads, wide)
    own = random(STEPS, count, kv_heads, width), random(STEPS, count, kv_heads, wide)
    leaves = (query, key, value, *own)
    runs: dict[str, tuple[Callable, tuple]] = {}
    if flex:
        runs["flex_attention"] = flexed(leaves, torch.from_numpy(document).cuda())
    if len(lengths) == 1:
        runs |= {f"SDPA {name}": plain(leaves, backend) for name, backend in backends().items()}

    def ours() -> torch.Tensor:
        return TritonAttention.apply(*leaves, tasks)[0]

    flops = 2 * heads * (sum(n * (n + 1) // 2 for n in lengths) + count * STEPS)
    others = {label: other(f) for label, (f, _) in runs.items()}
    yield ceilings.row(case, "forward", ours, flops * (width + wide), "TFLOP/s", **others)
    others = {label: other(f, of) for label, (f, of) in runs.items()}
    run = backward(ours, leaves)
    yield ceilings.row(case, "backward", run, flops * (3 * width + 2 * wide), "TFLOP/s", **others)


def flexed(leaves: tuple[torch.Tensor, ...], document: torch.Tensor) -> tuple[Callable, tuple]:
    query, key, value, own_keys, own_values = leaves
    count = len(query)

    def seen(b, h, q, k):  # type: ignore[no-untyped-def]
        row = k % count
        return torch.where(k < count, (row <= q) & (document[row] == document[q]), row == q)

    mask = create_block_mask(seen, None, None, count, count * (1 + STEPS), device="cuda", _compile=True)
    torch._dynamo.reset()  # its limit of compilations is per function, and every case is one
    compiled = torch.compile(flex_attention, dynamic=False)
    tensors = [
        x.detach().flatten(0, -3).transpose(0, 1)[None].contiguous().requires_grad_()
        for x in (query, torch.cat([key[None], own_keys]), torch.cat([value[None], own_values]))
    ]
    return lambda: compiled(*tensors, block_mask=mask, enable_gqa=query.shape[1] != key.shape[1]), tuple(tensors)


def backends() -> dict[str, SDPBackend]:
    return {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def plain(leaves: tuple[torch.Tensor, ...], backend: SDPBackend) -> tuple[Callable, tuple]:
    tensors = tuple(x.detach().transpose(0, 1)[None].requires_grad_() for x in leaves[:3])

    def run() -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)

    return run, tensors


if __name__ == "__main__":
    sys.exit(main(rows, lambda: [check(name, torch.bfloat16, "cuda") for name in WIDTHS]))
