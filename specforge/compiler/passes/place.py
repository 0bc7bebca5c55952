"""In: a graph without roles. Out: every operation with the role that runs it."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph

TRAINER, CAPTURE, DATA, RECORDER = "trainer", "capture", "data", "recorder"
APART = {"capture": CAPTURE, "conversations": DATA, "prompts": DATA, "mix": DATA}


def place(graph: Graph, facts: Facts) -> Graph:
    """Colocated: one role does everything, so no feature leaves its memory.

    Disaggregated: the run prepares documents, which every process reads from its folder; capture and
    training are apart. A recording has one role.
    """
    roles = APART if facts.apart else {}
    other = RECORDER if facts.recipe.train is None else TRAINER
    return graph.with_nodes(attrs.evolve(n, role=roles.get(n.kind, other)) for n in graph.nodes)
