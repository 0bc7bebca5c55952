"""In: a Recipe. Out: the Graph as it is written: one node per distinct operation, features not inferred yet."""

from __future__ import annotations

from typing import Any

from specforge.compiler.graph import Edge, Graph, Node
from specforge.dsl.capture import Capture
from specforge.dsl.feature import Feature
from specforge.dsl.node import BAD, is_node, written
from specforge.dsl.recipe import Recipe
from specforge.dsl.source import Ckpt, Recorded

TOKENS = Feature("tokens", 1, "int32")
LOSS_MASK = Feature("loss_mask", 1, "bool")
DRAFT = Feature("draft", 0, "float32")


def build(recipe: Recipe) -> Graph:
    """Equal dataflow nodes merge: two consumers of one Capture share it. Outputs stay apart.

    A refused node is left out with its edges, so that the rules between the others can still be asked.
    """
    nodes: list[Node] = []
    edges: list[Edge] = []

    def add(kind: str, spec: Any, line: int, *, merge: bool) -> str:
        for n in nodes:
            if merge and n.kind == kind and n.spec == spec:
                return n.name
        same = sum(n.kind == kind for n in nodes)
        nodes.append(Node(f"{kind}_{same + 1}" if same else kind, kind, spec, line))
        return nodes[-1].name

    def captured(capture: Capture, line: int) -> tuple[str, str] | None:
        if not is_node(capture.source):
            return None
        if isinstance(capture.source, Recorded | Ckpt):  # source and capture at once: the target is not run
            recorded = add(type(capture.source).__name__.lower(), capture, line, merge=True)
            return recorded, recorded
        source = add(type(capture.source).__name__.lower(), capture.source, written(capture.source).line, merge=True)
        known = len(nodes)
        name = add("capture", capture, line, merge=True)
        if len(nodes) > known:
            edges.append(Edge(source, name, TOKENS))
        return source, name

    def feed(consumer: str, origin: tuple[str, str] | None) -> None:
        if origin is not None:
            source, capture = origin
            edges.extend((Edge(source, consumer, TOKENS), Edge(source, consumer, LOSS_MASK)))
            edges.append(Edge(capture, consumer, None))

    train: Any = recipe.train
    record: Any = recipe.record
    if is_node(record) and train is None:
        origin = captured(record.features, written(record.features).line) if is_node(record.features) else None
        feed(add("record", record, written(record).line, merge=False), origin)
    features: Any = train.features if is_node(train) else BAD
    trainer = ""
    if is_node(train):
        origin = captured(features, written(features).line) if is_node(features) else None
        trainer = add("train", train, written(train).line, merge=False)
        feed(trainer, origin)
    for evaluate in _good(recipe.evaluate):
        line, origin = written(evaluate).line, None
        if is_node(features) and is_node(features.target):
            origin = captured(Capture(evaluate.source, features.target, features.policy), line)
        name = add("evaluate", evaluate, line, merge=False)
        feed(name, origin)
        edges.append(Edge(trainer, name, DRAFT))
    for output in _good(recipe.outputs):
        name = add(type(output).__name__.lower(), output, written(output).line, merge=False)
        edges.append(Edge(trainer, name, DRAFT))
    return Graph(tuple(nodes), tuple(e for e in edges if e.source))


def _good(items: Any) -> tuple[Any, ...]:
    """The nodes of a list that were not refused."""
    return tuple(item for item in items if is_node(item)) if isinstance(items, tuple) else ()
