"""In: a Recipe. Out: the Graph as it is written: one node per distinct operation, features not inferred yet."""

from __future__ import annotations

from typing import Any

from specforge.compiler.graph import Edge, Graph, Node
from specforge.dsl.capture import Capture
from specforge.dsl.feature import Feature
from specforge.dsl.node import written
from specforge.dsl.recipe import Recipe

TOKENS = Feature("tokens", 1, "int32")
LOSS_MASK = Feature("loss_mask", 1, "bool")
DRAFT = Feature("draft", 0, "float32")


def build(recipe: Recipe) -> Graph:
    """Equal dataflow nodes merge: two consumers of one Capture share it. Outputs stay apart."""
    train = recipe.train
    nodes: list[Node] = []
    edges: list[Edge] = []

    def add(kind: str, spec: Any, *, merge: bool) -> str:
        for n in nodes:
            if merge and n.kind == kind and n.spec == spec:
                return n.name
        same = sum(n.kind == kind for n in nodes)
        nodes.append(Node(f"{kind}_{same + 1}" if same else kind, kind, spec, written(spec).line))
        return nodes[-1].name

    def add_capture(capture: Capture) -> tuple[str, str]:
        source = add(type(capture.source).__name__.lower(), capture.source, merge=True)
        known = len(nodes)
        name = add("capture", capture, merge=True)
        if len(nodes) > known:
            edges.append(Edge(source, name, TOKENS))
        return source, name

    def consume(consumer: str, capture: Capture) -> None:
        source, name = add_capture(capture)
        edges.extend((Edge(source, consumer, TOKENS), Edge(source, consumer, LOSS_MASK), Edge(name, consumer, None)))

    add_capture(train.features)
    trainer = add("train", train, merge=False)
    consume(trainer, train.features)
    for evaluate in recipe.evaluate:
        features = train.features
        held_out = Capture(evaluate.source, features.target, features.policy)
        add_capture(held_out)
        name = add("evaluate", evaluate, merge=False)
        consume(name, held_out)
        edges.append(Edge(trainer, name, DRAFT))
    for output in recipe.outputs:
        name = add(type(output).__name__.lower(), output, merge=False)
        edges.append(Edge(trainer, name, DRAFT))
    return Graph(tuple(nodes), tuple(edges))
