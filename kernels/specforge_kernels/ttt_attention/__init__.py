"""In: queries, keys and values of one TTT step. Out: its attention. Formula and figures: README.md beside this file."""

from specforge_kernels.ttt_attention.blocks import Blocks, blocks
from specforge_kernels.ttt_attention.layout import CPU_TILING, CUDA_TILING, KeyLayout, Layout, key_layout, query_layout
from specforge_kernels.ttt_attention.op import merged, ttt_attention, ttt_attention_part
from specforge_kernels.ttt_attention.own_pairs import OwnPairs

__all__ = [
    "CPU_TILING",
    "CUDA_TILING",
    "Blocks",
    "KeyLayout",
    "Layout",
    "OwnPairs",
    "blocks",
    "key_layout",
    "merged",
    "query_layout",
    "ttt_attention",
    "ttt_attention_part",
]
