"""In: a graph without roles. Out: every operation with the role that runs it."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph

TRAINER = "trainer"


def place(graph: Graph, facts: Facts) -> Graph:
    """Colocated: one role does everything, so no feature leaves its memory."""
    return graph.with_nodes(attrs.evolve(n, role=TRAINER) for n in graph.nodes)
