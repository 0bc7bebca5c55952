"""In: projections of queries, keys and values side by side. Out: the three apart, queries and keys rotated."""

from specforge_kernels.split_rotate.op import split_rotate
from specforge_kernels.split_rotate.rotate import rotate

__all__ = ["rotate", "split_rotate"]
