"""In: a training node. Out: problems of its micro-steps."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import written
from specforge.dsl.problem import Problem


def pack_holds_a_document(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    tokens, longest = node.spec.pack_tokens, facts.max_length
    if tokens is not None and tokens < longest:
        what = f"Train.pack_tokens is {tokens}, and documents of up to max_length={longest} tokens do not fit"
        fix = f"set pack_tokens={longest} or more, or lower max_length"
        yield Problem(written(node.spec).line_of("pack_tokens"), "pack-too-small", what, fix)
