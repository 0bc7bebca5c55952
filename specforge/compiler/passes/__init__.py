"""In: a checked graph. Out: the graph ready to lower. `PIPELINE` is read top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.compiler.passes.infer_features import infer_features
from specforge.compiler.passes.insert_transfers import insert_transfers
from specforge.compiler.passes.place import place
from specforge.compiler.passes.select_kernels import select_kernels
from specforge.compiler.passes.size_buffers import size_buffers

Pass = Callable[[Graph, Facts], Graph]

PIPELINE: tuple[Pass, ...] = (
    infer_features,
    place,
    insert_transfers,
    size_buffers,
    select_kernels,
)
