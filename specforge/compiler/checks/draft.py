"""In: a training node and its target's geometry. Out: problems of the draft's sizes."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.draft_heads import draft_heads
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.strategy import knowledge
from specforge.dsl.node import problem_of
from specforge.dsl.problem import Problem

MAPS = ("d2t", "t2d")


def draft_vocabulary_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    vocabulary = facts.world.geometry(target).vocab_size
    if draft.vocab_size is not None and draft.vocab_size > vocabulary:
        what = f"Draft.vocab_size is {draft.vocab_size}, and the vocabulary of {target.name} has {vocabulary} tokens"
        fix = f"set vocab_size={vocabulary} or less; the most frequent supervised tokens are kept"
        yield problem_of(draft, "vocab_size", "draft-vocabulary", what, fix)


def draft_weights_fit(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft = node.spec.draft
    if draft.weights is None or draft.weights not in facts.world.weights:
        return
    found = facts.world.weights[draft.weights]
    known, policy = knowledge(node.spec.strategy), node.spec.features.policy
    layers = policy.layers if policy is not None and policy.layers is not None else known.layers(facts.geometry)
    wanted = {p.name: p.shape for p in known.draft(facts, layers).parameters if p.trainable or p.name in MAPS}
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    wrong += [
        f"{name} has {list(found[name])}, this draft {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        what = f"Draft.weights is {draft.weights!r}, of another draft: {'; '.join(wrong)}"
        yield problem_of(draft, "weights", "draft-weights-fit", what, "give the sizes of the draft that wrote it")


def draft_heads_divide(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    derived, given = draft_heads(facts.world.geometry(target)), (draft.num_heads, draft.num_kv_heads)
    heads, kv_heads = given[0] or derived.num_heads, given[1] or derived.num_kv_heads
    if None in given and heads % kv_heads:
        name, other = ("num_heads", "num_kv_heads") if given[0] else ("num_kv_heads", "num_heads")
        what = f"Draft.{name} is {getattr(draft, name)}, and {other}={kv_heads if given[0] else heads}, the target's,"
        what += " does not go with it: key-value heads divide heads"
        yield problem_of(draft, name, "draft-heads", what, f"give both: {other}=... as well")
