"""In: a placed graph. Out: captured features that cross roles go through a store: put where they are, get where not."""

from __future__ import annotations

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Edge, Graph, Node


def insert_transfers(graph: Graph, facts: Facts) -> Graph:
    """One put and one get for each capture that another role reads. Documents and drafts are files of the run."""
    nodes, edges = list(graph.nodes), list(graph.edges)
    for capture in graph.of_kind("capture"):
        crossing = [e for e in graph.outputs(capture.name) if graph.node(e.target).role != capture.role]
        crossing = [e for e in crossing if graph.node(e.target).kind != "put"]
        if not crossing:
            continue
        suffix = capture.name.removeprefix("capture")
        put, get = f"put{suffix}", f"get{suffix}"
        reader, store = graph.node(crossing[0].target).role, facts.disaggregated.store
        at = nodes.index(capture) + 1
        nodes[at:at] = [Node(put, "put", store, role=capture.role), Node(get, "get", store, role=reader)]
        edges = [e for e in edges if e not in crossing]
        for feature in dict.fromkeys(e.feature for e in crossing):
            edges += [Edge(capture.name, put, feature), Edge(put, get, feature)]
        edges += [Edge(get, e.target, e.feature) for e in crossing]
    return Graph(tuple(nodes), tuple(edges))
