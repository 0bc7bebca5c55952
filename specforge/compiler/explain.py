"""In: a Plan and the name of one of its operations. Out: text: its settings with origins, its edges, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import networkx

from specforge.compiler.show import document_length, feature_text, flops, settings_text, size, table
from specforge.dsl.rule import nearest
from specforge.plan import FlopPart, MemoryPart, Op, Plan
from specforge.recording import MANIFEST
from specforge.settings import RecordedSettings, SourceSettings, TrainSettings

# Where the recipe says it, for settings whose path is not "train." and their own name; the first that is known.
_POLICY = "train.features.policy"
_SAID = {
    "capture.layers": (f"{_POLICY}.layers", _POLICY),
    "capture.last_hidden": (f"{_POLICY}.last_hidden", _POLICY),
    "capture.dtype": (f"{_POLICY}.dtype", "topology.engine.dtype"),
    "capture.batch_documents": ("topology.engine.batch_size",),
    "capture.packed": ("topology.engine.packed",),
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
_CAPTURE_FLOPS = ("target prefill",)
_MARKS = {"checkpoint": "keep", "export": "format"}


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
        ("", [f"{op.name}: {settings_text(op)}", f"  {op.kind} in role {role.name}, on {role.device}"]),
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
        return tuple(p for p in plan.flops if p.name not in _CAPTURE_FLOPS)
    if op.kind == "capture" and _feeds_work(plan, op):
        return tuple(p for p in plan.flops if p.name in _CAPTURE_FLOPS)
    return ()


def _feeds_work(plan: Plan, op: Op) -> bool:
    """Whether an operation feeds the training, or the recording."""
    works = (*plan.ops("train"), *plan.ops("record"))
    return any(port.source.partition(".")[0] == op.name for work in works for port in work.inputs)


def _settings(plan: Plan, op: Op) -> list[tuple[str, str, str]]:
    said = {origin.path: origin.source for origin in plan.origins}
    root = _root(plan, op)
    rows = []
    for path, value in _leaves("", op.settings):
        usual = f"{root}.{path}".replace("train.eagle3.", "train.strategy.").replace(".batch_documents", ".batch_size")
        places = _SAID.get(f"{op.kind}.{path}", (usual,))
        if plan.ops("record"):
            places = tuple(place.replace("train.", "record.", 1) for place in places)
        sources = [said[at] for at in places if at in said]
        shown = list(value) if isinstance(value, tuple) else value
        rows.append((path, " ".join(str(shown).split()), sources[0] if sources else ""))
    return rows


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for a in attrs.fields(type(value)):
        held, full = getattr(value, a.name), f"{path}.{a.name}" if path else a.name
        if attrs.has(type(held)):
            yield from _leaves(full, held)
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
    path = op.settings.path if isinstance(op.settings, SourceSettings) else None
    path = f"{op.settings.path}/{MANIFEST}" if isinstance(op.settings, RecordedSettings) else path
    return [(f.path, size(f.bytes), f"sha256 {f.sha256}") for f in plan.files if f.path == path]
