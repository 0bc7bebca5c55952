"""In: a placed graph. Out: every training operation with the implementation of each of its hot parts, and why."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.plan import KernelChoice

HOT = ("ttt_attention", "soft_target_loss")


def select_kernels(graph: Graph, facts: Facts) -> Graph:
    """Both hot operations have one implementation, in PyTorch."""
    reason = f"the PyTorch implementation is the only one, on {facts.device.name} and elsewhere"
    choices = tuple(KernelChoice(op, "torch", reason) for op in HOT)
    return graph.with_nodes(attrs.evolve(n, kernels=choices) for n in graph.nodes if n.kind in ("train", "evaluate"))
