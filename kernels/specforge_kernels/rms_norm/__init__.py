"""In: rows and a weight. Out: RMSNorm with float32 statistics, one pass each way."""

from specforge_kernels.rms_norm.op import rms_norm

__all__ = ["rms_norm"]
