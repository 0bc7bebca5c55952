"""In: a recording that is read, or one that is made. Out: problems between it and the recipe around it."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.strategy import known
from specforge.dsl.node import problem_of, written
from specforge.dsl.problem import Problem
from specforge.dsl.source import Recorded
from specforge.recording import short_name


def recorded_of_this_target(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    """Name, sizes and, where they are drawn, weights."""
    source, target = node.spec.source, node.spec.target
    have, geometry = facts.world.recording(source).conditions, facts.world.geometry(target)
    seed = facts.recipe.seed if target.random_weights else None
    pairs = (
        ("target", short_name(have.target), short_name(target.name)),
        ("hidden size", have.hidden_size, geometry.hidden_size),
        ("layers in all", have.num_layers, geometry.num_layers),
        ("vocabulary", have.vocab_size, geometry.vocab_size),
        ("seed of random weights", have.seed, seed),
    )
    wrong = [f"{name} {one}, here {other}" for name, one, other in pairs if one != other]
    if wrong:
        what = f"Recorded({source.path!r}) is of another target than Capture.target: {'; '.join(wrong)}"
        fix = "name the target that was recorded, or record again with this one"
        if have.seed is not None and wrong == [f"seed of random weights {have.seed}, here {seed}"]:
            fix = f"write seed={have.seed}: it draws the weights"
        yield problem_of(node.spec, "target", "recorded-target", what, fix)


def recorded_layers(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    source, policy, target = node.spec.source, node.spec.policy, node.spec.target
    have = facts.world.recording(source).conditions
    needs = {f.name: f for f in known(facts).needs(facts.world.geometry(target), policy, facts.target_dtype)}
    layers, code = needs["aux"].layers, "recorded-layers"
    if have.layers != layers:
        said = "Eagle3 reads" if policy is None or policy.layers is None else "Policy.layers is"
        what = f"Recorded({source.path!r}) has layers {list(have.layers)}, and {said} {list(layers)}"
        fix = f"write Policy(layers={list(have.layers)}), or record again"
        yield Problem(written(source).line, code, what, fix)
    if "last_hidden" in needs and not have.last_hidden:
        what = f"Recorded({source.path!r}) has no last hidden state, and Eagle3 learns from it"
        yield Problem(written(source).line, code, what, "record again with Policy(last_hidden=True)")


def recorded_dtype(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    source, policy, target = node.spec.source, node.spec.policy, node.spec.target
    have = facts.world.recording(source).conditions.dtype
    aux = known(facts).needs(facts.world.geometry(target), policy, facts.target_dtype)[0]
    if have != aux.dtype:
        named = policy is not None and policy.dtype is not None
        said = "Policy.dtype is" if named else "without Policy.dtype it is that of the target's compute,"
        what = f"Recorded({source.path!r}) is in {have}, and {said} {aux.dtype}"
        fix = f"write Policy(dtype={have!r}), or record again in {aux.dtype}"
        yield Problem(written(source).line, "recorded-dtype", what, fix)


def all_recorded_or_none(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    mine, trained = (isinstance(s, Recorded) for s in (node.spec.source, facts.features.source))
    if mine != trained:
        one, other = type(node.spec.source).__name__, type(facts.features.source).__name__
        what = f"Evaluate.source is {one}, and training reads {other}: recorded features need no target, others do"
        fix = "record the held-out rows too, and write Evaluate(Recorded(...))"
        fix = fix if trained else "give it held-out rows, or train on Recorded features as well"
        yield problem_of(node.spec, "source", "recorded-mixed", what, fix)


def record_has_a_policy(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    capture = node.spec.features
    policy, line = capture.policy, written(capture).line
    if policy is None:
        what = "Record.features has no policy, and no training says what it needs"
        fix = "write Capture(source, target, Eagle3.policy(target)), or Policy(layers=[...])"
        yield Problem(line, "record-policy", what, fix)
    elif policy.layers is None and policy.strategy is None:
        what = "Policy.layers is not given, and neither is the strategy whose layers are meant"
        yield Problem(line, "record-policy", what, "write Eagle3.policy(target), or Policy(layers=[...])")


def record_captures(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    source = node.spec.features.source
    if isinstance(source, Recorded):
        what = f"Record.features reads Recorded({source.path!r}), which is recorded already"
        yield Problem(written(source).line, "record-recorded", what, "give it Conversations(...) or Prompts(...)")


def ckpt_is_recorded(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if facts.recipe.train is not None:
        source = node.spec.source
        what = f"Ckpt({source.path!r}) is read while a draft is trained, and only a recording says what it holds"
        fix = "record it once, record=Record(Capture(Ckpt(...), target, policy), path), then train on Recorded(path)"
        yield Problem(written(source).line, "ckpt-unrecorded", what, fix)


def record_in_one_process(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    topology = facts.recipe.topology
    if facts.apart:
        what = "Recipe.topology is Disaggregated, and a recording runs in one process"
        yield problem_of(facts.recipe, "topology", "record-one-process", what, "write topology=Colocated(device=...)")
    elif facts.ranks > 1:
        name = "ranks" if facts.trainers.gpus is None else "gpus"
        what = f"Colocated.{name} asks for {facts.ranks} ranks, and a recording runs in one process"
        fix = "leave it out, or name one GPU"
        yield problem_of(topology, name, "record-one-process", what, fix)
