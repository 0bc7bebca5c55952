"""In: a placed graph. Out: every training operation with the implementation of each of its hot parts, and why."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.plan import KernelChoice

HOT = ("ttt_attention", "soft_target_loss")


WIDEST_HEAD = 256


def select_kernels(graph: Graph, facts: Facts) -> Graph:
    """Triton where the device is a GPU and the draft computes in bfloat16, else PyTorch; the runtime decides alike.

    A recording has no such operation.
    """
    if facts.recipe.train is None:
        return graph
    choices = tuple(KernelChoice(op, *_choice(op, facts)) for op in HOT)
    return graph.with_nodes(attrs.evolve(n, kernels=choices) for n in graph.nodes if n.kind in ("train", "evaluate"))


def _choice(op: str, facts: Facts) -> tuple[str, str]:
    """(implementation, reason)."""
    if facts.device.name == "cpu":
        return "torch", "the Triton kernels run on a GPU; on a CPU the PyTorch implementation is the only one"
    if facts.precision != "bfloat16":
        return "torch", f"the Triton kernels pay in bfloat16, and the draft computes in {facts.precision}"
    if facts.geometry.head_dim > WIDEST_HEAD:
        return "torch", f"heads of {facts.geometry.head_dim} are wider than the {WIDEST_HEAD} of the Triton kernels"
    return "triton", f"bfloat16 on {facts.device.name}; without the package triton it is PyTorch"
