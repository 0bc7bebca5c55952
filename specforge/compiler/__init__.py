"""In: a recipe. Out: its Plan. Read `compile` and you know the pipeline."""

from __future__ import annotations

from pathlib import Path

from specforge.compiler.build import build
from specforge.compiler.checks import check
from specforge.compiler.facts import Facts
from specforge.compiler.geometry import read_world
from specforge.compiler.graph import Edge, Graph, Node
from specforge.compiler.load import Loaded, load
from specforge.compiler.lower import lower
from specforge.compiler.lower_recording import lower_recording
from specforge.compiler.override import named
from specforge.compiler.passes import PIPELINE
from specforge.compiler.problem import CompileError, Problem
from specforge.compiler.verify import verify
from specforge.plan import Plan

__all__ = [
    "CompileError",
    "Edge",
    "Graph",
    "Loaded",
    "Node",
    "Plan",
    "Problem",
    "compile",
    "compile_graph",
    "load",
]


def compile(loaded: Loaded, caches: tuple[Path, ...] = ()) -> Plan:
    """load → geometry → build → check → PIPELINE → lower.

    `loaded` comes from `load(path, overrides)`, or is made by a program: Loaded(recipe, base, file). `caches` are
    Hugging Face hub caches to look for configs in. Raises CompileError with every problem at once.
    """
    graph, facts = compile_graph(loaded, caches)
    return lower_recording(graph, facts) if facts.recipe.train is None else lower(graph, facts)


def compile_graph(loaded: Loaded, caches: tuple[Path, ...] = ()) -> tuple[Graph, Facts]:
    """The finished Graph before it is lowered, and the facts the lowering reads; raises as `compile` does."""
    world, problems = read_world(loaded, caches)
    facts = Facts(loaded.recipe, world, loaded.file)
    graph = build(loaded.recipe)
    problems = [*loaded.problems, *named([*problems, *check(graph, facts)], loaded.recipe)]
    if problems:
        raise CompileError(loaded.file, problems)
    verify(graph, "build")
    for step in PIPELINE:
        graph = step(graph, facts)
        verify(graph, step.__name__)
    return graph, facts
