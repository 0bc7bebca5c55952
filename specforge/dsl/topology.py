"""In: devices and engines. Out: `Colocated`: target and trainer in one process, or in one per rank."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.engine import Transformers
from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, gpu_ids, text, whole
from specforge.dsl.rule import node as a_node


def _ranks_or_gpus(topology: Any) -> tuple[str, Fault] | None:
    if topology.ranks is not None and topology.gpus is not None:
        what = f"is {topology.ranks}, and gpus={list(topology.gpus)} already gives every GPU a rank"
        return "ranks", Fault(what, "leave ranks out")
    return None


def _gpus_need_a_gpu(topology: Any) -> tuple[str, Fault] | None:
    if topology.gpus is not None and topology.device == "cpu":
        what = f"is {list(topology.gpus)}, and device='cpu' has none"
        fix = f"name the GPUs, as device='H200', or write ranks={len(topology.gpus)} for processes on the CPU"
        return "gpus", Fault(what, fix)
    return None


def _ranks_need_a_cpu(topology: Any) -> tuple[str, Fault] | None:
    ranks = topology.ranks
    if ranks is not None and ranks > 1 and topology.gpus is None and topology.device != "cpu":
        what = f"is {ranks}, and on device={topology.device!r} every rank has a GPU of its own"
        return "ranks", Fault(what, f"write gpus={list(range(ranks))} instead, the GPUs to use")
    return None


@node
class Colocated:
    """Target and trainer share a process and a device: features never leave its memory.

    `device`: an entry of the device table, "cpu" or a GPU's name like "H200"; the plan's memory verdict assumes it.
    `gpus`: the GPUs to train on, one rank on each (None: one rank on the first). `ranks`: processes on a CPU (None: 1).
    Every rank has its own target and draft, and trains its share of each optimizer step.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("ranks-or-gpus", "ranks follow from the GPUs where these are named", _ranks_or_gpus),
        NodeRule("gpus-on-cpu", "GPUs are named where the device is a GPU", _gpus_need_a_gpu),
        NodeRule("ranks-on-gpu", "several ranks on GPUs name the GPUs", _ranks_need_a_cpu),
    )

    engine: Transformers = field(a_node(Transformers), default=Transformers())
    device: str = field(text("a device's name"), default="cpu")
    gpus: tuple[int, ...] | None = field(gpu_ids(), default=None, optional=True)
    ranks: int | None = field(whole(), default=None, optional=True)
