"""In: a placed graph. Out: every training operation with the implementation of each of its hot parts, and why."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.compiler.kernels import hot_parts, impossible
from specforge.plan import KernelChoice


def select_kernels(graph: Graph, facts: Facts) -> Graph:
    """Triton where the device is a GPU and the draft computes in bfloat16, else PyTorch; or what the recipe says.

    The runtime runs what stands here. A recording has no such operation.
    """
    if facts.recipe.train is None:
        return graph
    choices = tuple(KernelChoice(part, *_choice(part, facts)) for part in hot_parts(facts))
    return graph.with_nodes(attrs.evolve(n, kernels=choices) for n in graph.nodes if n.kind in ("train", "evaluate"))


def _choice(part: str, facts: Facts) -> tuple[str, str]:
    """(implementation, reason)."""
    wish, reason = facts.train.kernels, impossible(part, facts)
    if wish is not None:
        return wish, f"Train.kernels is {wish!r}"
    if reason is not None:
        return "torch", reason
    if facts.precision != "bfloat16":
        return "torch", f"the Triton kernels pay in bfloat16, and the draft computes in {facts.precision}"
    return "triton", f"bfloat16 on {facts.device.name}"
