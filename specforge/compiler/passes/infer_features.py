"""In: a graph whose captures have untyped edges. Out: one typed edge per feature that the consumer needs."""

from __future__ import annotations

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Edge, Graph
from specforge.compiler.strategy import known


def infer_features(graph: Graph, facts: Facts) -> Graph:
    """The consumers of a capture are of the recipe's one strategy; its needs, under the policy, are the edges.

    A recording has what its policy says.
    """
    edges: list[Edge] = []
    for edge in graph.edges:
        if edge.feature is not None:
            edges.append(edge)
            continue
        capture = graph.node(edge.source).spec
        found = known(facts).needs(facts.world.geometry(capture.target), capture.policy, facts.target_dtype)
        if facts.recipe.train is None and not capture.policy.last_hidden:
            found = tuple(feature for feature in found if feature.name != "last_hidden")
        edges.extend(Edge(edge.source, edge.target, feature) for feature in found)
    return graph.with_edges(edges)
