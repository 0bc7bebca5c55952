"""In: a training node. Out: problems of its micro-steps and kernels."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.kernels import hot_parts, impossible
from specforge.dsl.node import problem_of, written
from specforge.dsl.problem import Problem


def pack_holds_a_document(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    tokens, longest = node.spec.pack_tokens, facts.max_length
    if tokens is not None and tokens < longest:
        what = f"Train.pack_tokens is {tokens}, and documents of up to max_length={longest} tokens do not fit"
        fix = f"set pack_tokens={longest} or more, or lower max_length"
        yield Problem(written(node.spec).line_of("pack_tokens"), "pack-too-small", what, fix)


def kernels_can_run(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if node.spec.kernels != "triton":
        return
    for part in hot_parts(facts):
        if (reason := impossible(part, facts)) is not None:
            what = f"Train.kernels is 'triton', and {part} cannot: {reason}"
            fix = "leave kernels out: each part takes what can run, and the plan says why"
            yield problem_of(node.spec, "kernels", "kernels-impossible", what, fix)
            return
