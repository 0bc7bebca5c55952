"""In: gate and up projections. Out: down(silu(gate) * up) that keeps only gate and up for the backward pass."""

from specforge_kernels.swiglu.op import gated_down

__all__ = ["gated_down"]
