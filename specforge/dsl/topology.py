"""In: devices, engines, a store. Out: `Colocated`: target and trainer share processes; `Disaggregated`: they do not."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.engine import ENGINES, Engine, Transformers
from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, choice, gpu_ids, some_nodes, text, whole
from specforge.dsl.rule import node as a_node
from specforge.dsl.store import STORES, Store


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


def _engine_has_no_gpu(topology: Any) -> tuple[str, Fault] | None:
    if topology.engine.gpus is not None:
        what = f"has gpus={list(topology.engine.gpus)}, and it runs where the trainer does"
        return "engine", Fault(what, f"write gpus={list(topology.engine.gpus)} in Colocated, and leave it out here")
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
        NodeRule("engine-gpus", "an engine beside its trainer runs on the trainer's GPU", _engine_has_no_gpu),
    )

    engine: Transformers = field(a_node(Transformers), default=Transformers())
    device: str = field(text("a device's name"), default="cpu")
    gpus: tuple[int, ...] | None = field(gpu_ids(), default=None, optional=True)
    ranks: int | None = field(whole(), default=None, optional=True)


@node
class Trainers:
    """The processes that train. `gpus`: one rank on each; None: the first that no capture server takes, or a CPU.

    `ranks`: processes on a CPU (None: 1).
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("ranks-or-gpus", "ranks follow from the GPUs where these are named", _ranks_or_gpus),
    )

    gpus: tuple[int, ...] | None = field(gpu_ids(), default=None, optional=True)
    ranks: int | None = field(whole(), default=None, optional=True)


def _servers_alike(topology: Any) -> tuple[str, Fault] | None:
    first = topology.servers[0]
    for server in topology.servers[1:]:
        if type(server) is not type(first):
            what = f"holds {type(first).__name__} and {type(server).__name__}, which round differently"
            return "servers", Fault(what, "use one engine for all of them")
        if server.dtype != first.dtype:
            what = f"compute in {first.dtype} and {server.dtype}, and a draft learns of one target"
            return "servers", Fault(what, "give all of them the same dtype")
    return None


def _servers_once(topology: Any) -> tuple[str, Fault] | None:
    seen: set[str] = set()
    for server in topology.servers:
        url = (getattr(server, "url", None) or "").rstrip("/")
        if url and url in seen:
            return "servers", Fault(f"hold {url!r} twice, and it is one server", "leave one of them out")
        seen.add(url)
    return None


def _devices_apart(topology: Any) -> tuple[str, Fault] | None:
    taken: dict[int, str] = {}
    holders = [(f"servers[{i}]", server.gpus) for i, server in enumerate(topology.servers)]
    for holder, gpus in [*holders, ("trainers", topology.trainers.gpus)]:
        for gpu in gpus or ():
            if gpu in taken:
                what = f"take GPU {gpu}, which {taken[gpu]} has too" if holder == "trainers" else None
                what = what or f"give GPU {gpu} to {taken[gpu]} and to {holder}"
                return holder.partition("[")[0], Fault(what, "give every server and trainer GPUs of its own")
            taken[gpu] = holder
    return None


def _processes_need_their_device(topology: Any) -> tuple[str, Fault] | None:
    named = [("servers", s.gpus) for s in topology.servers] + [("trainers", topology.trainers.gpus)]
    for name, gpus in named:
        if gpus is not None and topology.device == "cpu":
            fix = "name the GPUs, as device='H200', or leave gpus out"
            return name, Fault(f"name GPUs {list(gpus)}, and device='cpu' has none", fix)
    return None


def _trainers_name_gpus(topology: Any) -> tuple[str, Fault] | None:
    ranks = topology.trainers.ranks
    if ranks is not None and ranks > 1 and topology.device != "cpu":
        what = f"have ranks={ranks}, and on device={topology.device!r} every rank has a GPU of its own"
        return "trainers", Fault(what, "write Trainers(gpus=[...]), the GPUs to use")
    return None


def _watermarks_in_order(topology: Any) -> tuple[str, Fault] | None:
    high, low = topology.high_watermark, topology.low_watermark
    if high is not None and low is not None and low >= high:
        what = f"is {low}, and capture stops at high_watermark={high}"
        return "low_watermark", Fault(what, f"set low_watermark below {high}, or leave it out")
    return None


@node
class Disaggregated:
    """Capture servers put features into a store, trainers get them from there: processes of their own.

    `device`: as for Colocated, of servers and trainers alike. `retain`: "prompts" drops features once they are trained
    and captures them again after a crash; "features" keeps them until a checkpoint covers them. Capture stops at
    `high_watermark` documents that are not trained yet, and goes on at `low_watermark`; None: what the training asks
    for.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("servers-alike", "all capture servers compute the same", _servers_alike),
        NodeRule("server-twice", "a server that runs already is named once", _servers_once),
        NodeRule("gpu-twice", "a GPU belongs to one server or trainer", _devices_apart),
        NodeRule("gpus-on-cpu", "GPUs are named where the device is a GPU", _processes_need_their_device),
        NodeRule("ranks-on-gpu", "several ranks on GPUs name the GPUs", _trainers_name_gpus),
        NodeRule("watermark-order", "the low watermark is below the high one", _watermarks_in_order),
    )

    servers: tuple[Engine, ...] = field(some_nodes(*ENGINES))
    store: Store = field(a_node(*STORES, why="where features wait: SharedDir()"))
    trainers: Trainers = field(a_node(Trainers), default=Trainers())
    device: str = field(text("a device's name"), default="cpu")
    retain: str = field(choice("prompts", "features"), default="prompts")
    high_watermark: int | None = field(whole(), default=None, optional=True)
    low_watermark: int | None = field(whole(), default=None, optional=True)


Topology = Colocated | Disaggregated
TOPOLOGIES = (Colocated, Disaggregated)
