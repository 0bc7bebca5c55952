"""In: a capture and its target's geometry. Out: problems of layers, lengths and tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import problem_of, written
from specforge.dsl.problem import Problem
from specforge.dsl.source import Conversations, files_of


def capture_layers_exist(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    policy, count = node.spec.policy, facts.world.geometry(node.spec.target).num_layers
    if policy is None or policy.layers is None:
        return
    beyond = [i for i in policy.layers if i >= count]
    if beyond:
        what = f"Policy.layers is {list(policy.layers)}, and {node.spec.target.name} has layers 0 to {count - 1}"
        fix = f"leave out {', '.join(map(str, beyond))}: id i is the output of decoder layer i, counted from 0"
        yield problem_of(policy, "layers", "layer-out-of-range", what, fix)


def capture_length_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    target, most = node.spec.target, facts.world.geometry(node.spec.target).max_position_embeddings
    for source in files_of(node.spec.source):
        if source.max_length > most:
            what = (
                f"{type(source).__name__}.max_length is {source.max_length}, and the context of {target.name} is {most}"
            )
            yield problem_of(source, "max_length", "length-beyond-context", what, f"set max_length={most} or less")


def capture_needs_tokenizer(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    target = node.spec.target
    for source in files_of(node.spec.source):
        if isinstance(source, Conversations) and target.random_weights:
            what = f"Conversations({source.path!r}) is text, and {target.name} with random weights has no tokenizer"
            yield Problem(written(source).line, "tokenizer-missing", what, "use Prompts with tokenised rows")
