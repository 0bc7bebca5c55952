"""In: a recipe's topology. Out: problems of its device and of the dtypes on it."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.devices import DEVICES
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import problem_of
from specforge.dsl.problem import Problem
from specforge.dsl.rule import nearest


def device_known(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    topology = facts.recipe.topology
    if topology.device not in DEVICES:
        what = f"Colocated.device is {topology.device!r}, and the device table has no such entry"
        yield problem_of(topology, "device", "device-unknown", what, nearest(topology.device, DEVICES))


def dtype_suits_device(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    topology = facts.recipe.topology
    if topology.device == "cpu" and topology.engine.dtype == "float16":
        what = "Transformers.dtype is 'float16', and a CPU has no fast float16 arithmetic"
        fix = "set dtype='float32' or 'bfloat16', or name a GPU in the topology"
        yield problem_of(topology.engine, "dtype", "dtype-device", what, fix)
