"""In: rows and a weight. Out: RMSNorm with float32 statistics, one pass each way."""

from specforge_kernels.rms_norm.op import norm_gradients, normed, rms_norm

__all__ = ["norm_gradients", "normed", "rms_norm"]
