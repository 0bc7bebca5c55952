"""In: a training node. Out: problems of its micro-steps."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import written
from specforge.dsl.problem import Problem


def pack_holds_a_document(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    tokens, source = node.spec.pack_tokens, node.spec.features.source
    if tokens is not None and tokens < source.max_length:
        what = f"Train.pack_tokens is {tokens}, and documents of up to max_length={source.max_length} tokens do not fit"
        fix = f"set pack_tokens={source.max_length} or more, or lower max_length"
        yield Problem(written(node.spec).line_of("pack_tokens"), "pack-too-small", what, fix)
