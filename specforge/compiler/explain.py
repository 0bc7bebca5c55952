"""In: a Plan and the name of one of its operations. Out: text: its settings with origins, its edges, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import networkx

from specforge.compiler.columns import flops, size, table
from specforge.compiler.show import CAPTURE_FLOPS, document_length, feature_text, settings_text
from specforge.dsl.rule import nearest
from specforge.plan import FlopPart, MemoryPart, Op, Plan
from specforge.recording import MANIFEST
from specforge.settings import RecordedSettings, SourceSettings, TrainSettings

# Where the recipe says it, for settings whose path is not "train." and their own name; the first that is known.
_POLICY = "train.features.policy"
_SAID = {
    "capture.layers": (f"{_POLICY}.layers", _POLICY),
    "capture.last_hidden": (f"{_POLICY}.last_hidden", _POLICY),
    "capture.dtype": (f"{_POLICY}.dtype", "topology.engine.dtype", "topology.servers[0].dtype"),
    "capture.batch_documents": ("topology.engine.batch_size", "topology.servers[0].batch_size"),
    "capture.packed": ("topology.engine.packed", "topology.servers[0].packed"),
    **{f"recorded.{name}": () for name in ("layers", "last_hidden", "dtype")},
    "train.batch_documents": ("train.batch_size",),
    "train.draft.aux_layers": (f"{_POLICY}.layers", _POLICY),
    "train.draft.draft_vocab_size": ("train.draft.vocab_size",),
    "train.draft.vocab_size": (),
    "train.draft.dtype": ("train.precision",),
    "train.draft.fc_norm": ("train.strategy.fc_norm",),
    "train.draft.norm_output": ("train.strategy.norm_output",),
}
_CAPTURE_MEMORY = ("target weights", "features", "prefill")
_TRANSFERS = ("put", "get")
_MARKS = {"checkpoint": "keep", "export": "format"}
_STORE = {
    "path": ("topology.store.path",),
    "master": ("topology.store.master",),
    "protocol": ("topology.store.protocol",),
    "high_documents": ("topology.high_watermark",),
    "low_documents": ("topology.low_watermark",),
    "pool_bytes": ("topology.store.max_gib",),
    "retain": ("topology.retain",),
}


class UnknownOperation(ValueError):
    """A name that no operation of the plan has."""


def text(plan: Plan, name: str) -> str:
    """One operation, section by section. Raises UnknownOperation with the name that was meant."""
    names = [op.name for op in plan.ops()]
    if name not in names:
        raise UnknownOperation(f"--explain {name}: the plan has no such operation; {nearest(name, names)}")
    op = plan.op(name)
    role = next(role for role in plan.roles if op in role.ops)
    edges = networkx.DiGraph([(port.source.partition(".")[0], o.name) for o in plan.ops() for port in o.inputs])
    edges.add_nodes_from(names)
    length = document_length(plan, op)
    sections = (
        ("", [f"{op.name}: {settings_text(plan, op)}", f"  {op.kind} in role {role.name}, on {role.device}"]),
        ("settings", table(_settings(plan, op))),
        ("inputs", table((p.source, feature_text(p.feature, length)) for p in op.inputs)),
        ("outputs", table((p.name, feature_text(p.feature, length)) for p in op.outputs)),
        ("comes after", [n for n in names if n in networkx.ancestors(edges, name)]),
        ("comes before", [n for n in names if n in networkx.descendants(edges, name)]),
        ("kernels", table((k.op, k.implementation, k.reason) for k in plan.kernels if k.op.startswith(f"{name}."))),
        ("memory per rank", table(_memory_row(part) for part in memory_of(plan, op))),
        ("FLOPs per micro-step: needed, computed", table(_flop_row(part) for part in flops_of(plan, op))),
        ("state_dict", table(_parameters(op))),
        ("file", table(_file(plan, op))),
    )
    lines: list[str] = []
    for title, rows in sections:
        if rows:
            lines += ["", title] if title else []
            lines += [f"  {row}" if title else row for row in rows]
    return "\n".join(lines) + "\n"


def memory_of(plan: Plan, op: Op) -> tuple[MemoryPart, ...]:
    """Parts of the memory that are there for this operation; captures share the target's weights."""
    if op.kind == "train":
        return tuple(p for p in plan.memory if p.name not in _CAPTURE_MEMORY)
    if op.kind == "capture":
        mine = _CAPTURE_MEMORY if _feeds_work(plan, op) else _CAPTURE_MEMORY[:1]
        return tuple(p for p in plan.memory if p.name in mine)
    return ()


def flops_of(plan: Plan, op: Op) -> tuple[FlopPart, ...]:
    """Parts of a training micro-step's FLOPs that are this operation's."""
    if op.kind == "train":
        return tuple(p for p in plan.flops if p.name not in CAPTURE_FLOPS)
    if op.kind == "capture" and _feeds_work(plan, op):
        return tuple(p for p in plan.flops if p.name in CAPTURE_FLOPS)
    return ()


def _feeds_work(plan: Plan, op: Op) -> bool:
    """Whether training or recording reads what the operation gives, from memory or through a store."""
    works = (*plan.ops("train"), *plan.ops("record"))
    return any(op.name in _givers(plan, work) for work in works)


def _givers(plan: Plan, op: Op) -> set[str]:
    """Names of the operations whose outputs reach this one, seen through puts and gets."""
    found = {port.source.partition(".")[0] for port in op.inputs}
    return found.union(*(_givers(plan, plan.op(n)) for n in found if plan.op(n).kind in _TRANSFERS))


def _settings(plan: Plan, op: Op) -> list[tuple[str, str, str]]:
    said = {origin.path: origin.source for origin in plan.origins}
    root = _root(plan, op)
    rows = []
    for path, value in _leaves("", op.settings):
        by = "chat_family" if path == "chat_template" and getattr(op.settings, "chat_family", None) else path
        usual = f"{root}.{by}".replace("train.eagle3.", "train.strategy.").replace(".batch_documents", ".batch_size")
        asked = _STORE.get(path, ()) if op.kind in _TRANSFERS else _SAID.get(f"{op.kind}.{path}", (usual,))
        if plan.ops("record"):
            asked = tuple(place.replace("train.", "record.", 1) for place in asked)
        sources = [said[at] for at in asked if at in said]
        shown = list(value) if isinstance(value, tuple) else value
        rows.append((path, " ".join(str(shown).split()), sources[0] if sources else ""))
    return rows


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for a in attrs.fields(type(value)):
        held, full = getattr(value, a.name), f"{path}.{a.name}" if path else a.name
        if attrs.has(type(held)):
            yield from _leaves(full, held)
        elif isinstance(held, tuple) and held and attrs.has(type(held[0])) and a.name != "parameters":
            for number, part in enumerate(held):
                yield from _leaves(f"{full}[{number}]", part)
        elif a.name != "parameters":
            yield full, held


def _root(plan: Plan, op: Op) -> str:
    """The path of the recipe's node that the operation came from; "" where it is not one node."""
    said = {origin.path: origin.value for origin in plan.origins}
    if isinstance(op.settings, SourceSettings | RecordedSettings):
        names = ("path", "max_length", "max_rows") if isinstance(op.settings, SourceSettings) else ("path",)
        mine = {name: str(getattr(op.settings, name)) for name in names}
        roots = (path.removesuffix(".path") for path in said if path.endswith("source.path"))
        return next((r for r in roots if all(said.get(f"{r}.{n}", v) == v for n, v in mine.items())), "")
    number = [other.name for other in plan.ops(op.kind)].index(op.name)
    if op.kind in _MARKS:
        marks = [path.rpartition(".") for path in said if path.startswith("outputs[")]
        return [root for root, _, field in marks if field == _MARKS[op.kind]][number]
    return f"evaluate[{number}]" if op.kind == "evaluate" else op.kind


def _memory_row(part: MemoryPart) -> tuple[str, ...]:
    return part.name, size(part.bytes), "exact" if part.exact else "at most", part.note


def _flop_row(part: FlopPart) -> tuple[str, ...]:
    return part.name, flops(part.needed), flops(part.computed)


def _parameters(op: Op) -> list[tuple[str, ...]]:
    if not isinstance(op.settings, TrainSettings):
        return []
    return [
        (p.name, str(list(p.shape)), p.dtype, size(p.bytes), "trained" if p.trainable else "frozen")
        for p in op.settings.draft.parameters
    ]


def _file(plan: Plan, op: Op) -> list[tuple[str, ...]]:
    paths = [part.path for part in op.settings.files] if isinstance(op.settings, SourceSettings) else []
    if isinstance(op.settings, RecordedSettings):
        paths = [f"{op.settings.path}/{MANIFEST}"]
    return [(f.path, size(f.bytes), f"sha256 {f.sha256}") for f in plan.files if f.path in paths]
