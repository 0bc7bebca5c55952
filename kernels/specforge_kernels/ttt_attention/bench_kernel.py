"""In: a GPU. Out: error of the Triton kernels at small cases, then their ms and TFLOP/s beside SDPA's, bfloat16."""

from __future__ import annotations

import sys

import numpy as np
import torch

from specforge_kernels.ttt_attention.blocks import blocks
from specforge_kernels.ttt_attention.launch import TritonAttention
from specforge_kernels.ttt_attention.test_kernel import main as check

SHAPES = {"Llama-3-8B": (32, 8, 128, 128), "SmolLM2": (9, 3, 64, 64), "DeepSeek-V3": (32, 32, 192, 128)}
LENGTHS = {
    "one of 2048": (2048,),
    "one of 8192": (8192,),
    "one of 16384": (16384,),
    "64 of 64..512": tuple(int(n) for n in np.random.default_rng(0).integers(64, 513, 64)),
}


def row(name: str, lengths: tuple[int, ...], shape: tuple[int, int, int, int], steps: int = 3) -> str:
    import triton

    heads, kv_heads, width, wide = shape
    document = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(n) for n in lengths])
    count = len(document)
    tasks = blocks(document, position, np.array(lengths)).to("cuda")

    def made(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    query, key, value = made(count, heads, width), made(count, kv_heads, width), made(count, kv_heads, wide)
    own = made(steps, count, kv_heads, width), made(steps, count, kv_heads, wide)
    out, _ = TritonAttention.apply(query, key, value, *own, tasks)
    grad, leaves = torch.randn_like(out), (query, key, value, *own)

    def forward() -> None:
        TritonAttention.apply(query, key, value, *own, tasks)

    def backward() -> None:
        torch.autograd.grad(out, leaves, grad, retain_graph=True)

    pairs = sum(n * (n + 1) // 2 for n in lengths) + count * steps
    flops = 2 * pairs * heads
    text = f"{name:34s}"
    for label, run, products in (
        ("forward", forward, width + wide),
        ("backward", backward, 3 * width + 2 * wide),
    ):
        ms = triton.testing.do_bench(run, warmup=50, rep=200, return_mode="median")
        text += f" {label} {ms:8.3f} ms {flops * products / ms / 1e9:6.0f} TFLOP/s"
    if len(lengths) == 1 and width == wide:
        q, k, v = (x.detach().transpose(0, 1)[None].requires_grad_() for x in (query, key, value))

        def sdpa() -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        plain = sdpa()
        for run in (sdpa, lambda: torch.autograd.grad(plain, (q, k, v), torch.ones_like(plain), retain_graph=True)):
            text += f" sdpa {triton.testing.do_bench(run, warmup=50, rep=200, return_mode='median'):8.3f} ms"
    return text


def main() -> int:
    check("cuda")
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for shape, sizes in SHAPES.items():
        for name, lengths in LENGTHS.items():
            print(row(f"{shape}, {name}", lengths, sizes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
