"""In: what an op is to run on. Out: "triton" or "torch", and why; the wish "auto" takes Triton where it can."""

from __future__ import annotations

import functools
import importlib.util

import torch

WISHES = ("auto", "triton", "torch")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST_HEAD = 256


def implementation(device: torch.device, dtype: torch.dtype, wish: str = "auto", head_width: int = 0) -> str:
    """`head_width`: the widest key or value of an attention. ValueError: "triton" is wished and cannot be."""
    if wish not in WISHES:
        raise ValueError(f"implementation={wish!r} is unknown; choose one of {', '.join(WISHES)}")
    if wish == "torch":
        return "torch"
    reason = _why_not(device, dtype, head_width)
    if wish == "triton" and reason:
        raise ValueError(f'implementation="triton" is not possible: {reason}; use "auto" or "torch"')
    # float32 kernels work without tensor cores' rounding; they are for tests, not faster than cuBLAS
    return "torch" if reason or (wish == "auto" and (device.type != "cuda" or dtype == torch.float32)) else "triton"


def _why_not(device: torch.device, dtype: torch.dtype, head_width: int) -> str:
    if not _there():
        return "the package triton is not installed"
    if dtype not in DTYPES:
        return f"the kernels take {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, not {dtype}"
    if head_width > WIDEST_HEAD:
        return f"heads of width {head_width} are wider than {WIDEST_HEAD}"
    return ""


@functools.cache
def _there() -> bool:
    return importlib.util.find_spec("triton") is not None
