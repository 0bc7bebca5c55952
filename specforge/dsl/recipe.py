"""In: what to train, where, and what it leaves. Out: `Recipe`, the root of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from specforge.dsl.node import field, is_node, node
from specforge.dsl.output import Checkpoint, Evaluate, Export, Output
from specforge.dsl.rule import file_name, nodes, text, whole
from specforge.dsl.rule import node as a_node
from specforge.dsl.topology import TOPOLOGIES, Colocated, Topology
from specforge.dsl.train import Train


@node
class Recipe:
    """A run. Replacing `topology` alone moves it from one CPU to a cluster.

    `output_dir`: the run's folder, relative to the folder the run is started in; "{name}" stands for the name.
    """

    name: str = field(file_name())
    train: Train = field(a_node(Train, why="what to train: Train(features, Eagle3())"))
    topology: Topology = field(a_node(*TOPOLOGIES), default=Colocated())
    evaluate: tuple[Evaluate, ...] = field(nodes(Evaluate), default=())
    outputs: tuple[Output, ...] = field(nodes(Checkpoint, Export), default=())
    seed: int = field(whole(0, 2**31 - 1), default=42)
    output_dir: str = field(text("a folder"), default="runs/{name}")


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
