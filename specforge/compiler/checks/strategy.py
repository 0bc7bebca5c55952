"""In: a training node. Out: problems between what its capture gives and what its strategy reads."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.strategy import known
from specforge.compiler.strategy.eagle3 import LAYERS
from specforge.dsl.node import problem_of
from specforge.dsl.problem import Problem


def strategy_has_its_layers(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    policy = node.spec.features.policy
    if node.kind == "record" and (policy is None or policy.layers is not None or policy.strategy is None):
        return
    if policy is not None and policy.layers is not None:
        if len(policy.layers) != LAYERS:
            what = f"Policy.layers is {list(policy.layers)}, and Eagle3 reads exactly {LAYERS} layers"
            fix = "name a low, a middle and a high layer, or leave layers out"
            yield problem_of(policy, "layers", "layer-count", what, fix)
        return
    geometry = facts.world.geometry(node.spec.features.target)
    layers = known(facts).layers(geometry)
    if min(layers) < 0 or len(set(layers)) != len(layers) or list(layers) != sorted(layers):
        what = f"Eagle3 reads layers 1, L//2 - 1 and L - 4, and {node.spec.features.target.name} has only"
        what += f" {geometry.num_layers} layers: {list(layers)}"
        fix = "name three of its layers: Capture(source, target, Policy(layers=[...]))"
        yield Problem(node.line, "layer-count", what, fix)


def strategy_has_its_features(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    policy = node.spec.features.policy
    if policy is not None and not policy.last_hidden:
        what = "Policy.last_hidden is False, and Eagle3 learns from the target's last hidden state"
        yield problem_of(policy, "last_hidden", "feature-missing", what, "set last_hidden=True")
