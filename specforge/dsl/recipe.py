"""In: what to train, where, and what it leaves. Out: `Recipe`, the root of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from specforge.dsl.node import BAD, NodeRule, field, is_node, node
from specforge.dsl.output import Checkpoint, Evaluate, Export, Output
from specforge.dsl.record import Record
from specforge.dsl.rule import Fault, file_name, nodes, run_folder, whole
from specforge.dsl.rule import node as a_node
from specforge.dsl.topology import TOPOLOGIES, Colocated, Topology
from specforge.dsl.train import Train


def _one_work(recipe: Any) -> tuple[str, Fault] | None:
    if recipe.train is None and recipe.record is None:
        what = "is not given, and neither is record: the recipe does nothing"
        return "train", Fault(what, "write train=Train(features, Eagle3()), or record=Record(features, path)")
    if recipe.train is not None and recipe.record is not None:
        what = "is given beside train, and a run does one of them"
        return "record", Fault(what, "record in a recipe of its own, then train on Recorded(path)")
    return None


def _record_alone(recipe: Any) -> tuple[str, Fault] | None:
    for name in ("evaluate", "outputs"):
        value = getattr(recipe, name)
        if recipe.record not in (None, BAD) and recipe.train is None and value is not BAD and value:
            return name, Fault("is given, and a recording trains no draft", f"leave {name} out")
    return None


@node
class Recipe:
    """A run: `train` a draft, or `record` features for later trainings.

    Replacing `topology` alone moves it from one CPU to a cluster.
    `output_dir`: the run's folder, relative to the folder the run is started in; "{name}" stands for the name.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("train-or-record", "a recipe trains or records", _one_work),
        NodeRule("record-alone", "a recording has no evaluations and no outputs", _record_alone),
    )

    name: str = field(file_name())
    train: Train | None = field(
        a_node(Train, why="what to train: Train(features, Eagle3())"), default=None, optional=True
    )
    topology: Topology = field(a_node(*TOPOLOGIES), default=Colocated())
    evaluate: tuple[Evaluate, ...] = field(nodes(Evaluate), default=())
    outputs: tuple[Output, ...] = field(nodes(Checkpoint, Export), default=())
    seed: int = field(whole(0, 2**31 - 1), default=42)
    output_dir: str = field(run_folder(), default="runs/{name}")
    record: Record | None = field(
        a_node(Record, why="what to record: Record(features, path)"), default=None, optional=True
    )


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The nodes a node was given, each with its path below it ("train", "outputs[0]")."""
    for a in attrs.fields(type(value)):
        held = getattr(value, a.name)
        if is_node(held):
            yield a.name, held
        elif isinstance(held, tuple):
            for index, item in enumerate(held):
                if is_node(item):
                    yield f"{a.name}[{index}]", item


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every node below this one, itself first, with its path; a node used twice appears at each place."""
    yield path, value
    for name, child in children(value):
        yield from walk(child, f"{path}.{name}" if path else name)
