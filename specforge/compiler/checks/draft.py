"""In: a training node and its target's geometry. Out: problems of the draft's sizes."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import written
from specforge.dsl.problem import Problem


def draft_vocabulary_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    vocabulary = facts.world.geometry(target).vocab_size
    if draft.vocab_size is not None and draft.vocab_size > vocabulary:
        what = f"Draft.vocab_size is {draft.vocab_size}, and the vocabulary of {target.name} has {vocabulary} tokens"
        fix = f"set vocab_size={vocabulary} or less; the most frequent supervised tokens are kept"
        yield Problem(written(draft).line_of("vocab_size"), "draft-vocabulary", what, fix)
