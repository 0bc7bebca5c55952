"""In: evaluations and outputs. Out: problems of what a run leaves and measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import problem_of, written
from specforge.dsl.problem import Problem
from specforge.dsl.source import Recorded, files_of


def evaluation_held_out(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    pairs = itertools.product(files_of(node.spec.source), files_of(facts.train.features.source))
    same = ((s, t) for s, t in pairs if _rows(s, facts) == _rows(t, facts))
    for source, trained in itertools.islice(same, 1):
        what = f"Evaluate.source reads {source.path!r}, and the draft is trained on the same rows: {trained.path!r}"
        fix = "give it a file of rows that training does not read"
        yield problem_of(node.spec, "source", "not-held-out", what, fix)


def _rows(source: Any, facts: Facts) -> str:
    """What tells the rows of one source from those of another."""
    if isinstance(source, Recorded):
        return facts.world.recording(source).conditions.source
    return next((f.sha256 for f in facts.world.files if f.path == source.path), source.path)


def interval_within_run(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    every, steps, place = node.spec.every, facts.train.max_steps, written(node.spec)
    given = "every" in (*place.given, *place.overridden)
    if given and steps is not None and every > steps:
        what = f"Evaluate.every is {every}, and the run has max_steps={steps}"
        fix = f"set every={steps} or less: the last step is evaluated anyway"
        yield problem_of(node.spec, "every", "interval-beyond-run", what, fix)


def checkpoint_once(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    first = graph.of_kind("checkpoint")[0]
    if node.name != first.name:
        what = f"outputs hold two Checkpoints, the first at line {first.line}"
        yield Problem(node.line, "checkpoint-twice", what, "keep one Checkpoint(every=..., keep=...)")


def export_once(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    same = [n for n in graph.of_kind("export") if n.spec.format == node.spec.format]
    if same[0].name != node.name:
        what = f"outputs hold Export({node.spec.format!r}) twice, the first at line {same[0].line}"
        yield Problem(node.line, "export-twice", what, "keep one of them")
