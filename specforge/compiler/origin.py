"""In: the facts. Out: where each value of the plan came from: a recipe line, a default, an override, or derived."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from specforge.compiler.draft_heads import draft_heads
from specforge.compiler.facts import Facts
from specforge.compiler.passes.size_buffers import least_documents
from specforge.dsl.engine import SGLang
from specforge.dsl.node import written
from specforge.dsl.recipe import children, walk
from specforge.dsl.topology import Disaggregated
from specforge.plan import Origin
from specforge.settings import CaptureSettings, CkptSettings, TrainSettings

# what a recipe does not do, and what only a recording reads
NOT_THERE = ("train", "record", "train.features.policy.strategy")


def origins(facts: Facts, work: TrainSettings | CaptureSettings | CkptSettings) -> tuple[Origin, ...]:
    """One entry per field of the recipe, with the value that holds; None fields show what was derived.

    `work`: what is trained, or of a recording what is captured.
    """
    recipe, found = facts.recipe, []
    lines = {"": written(recipe).line}
    derived = _derived(facts, work) if isinstance(work, TrainSettings) else _derived_recording(facts, work)
    for path, node in walk(recipe):
        place = written(node)
        parent = path.rpartition(".")[0]
        lines[path] = place.line if place.file == facts.file else lines.get(parent, 0)
        held = {name.partition("[")[0] for name, _ in children(node)}
        for a in attrs.fields(type(node)):
            if a.name in held or getattr(node, a.name) == ():
                continue
            value, full = getattr(node, a.name), f"{path}.{a.name}" if path else a.name
            if value is None and full in NOT_THERE:
                continue
            if value is None and full in derived:
                found.append(Origin(full, derived[full][0], f"derived: {derived[full][1]}"))
                continue
            source = "default"
            if a.name in place.overridden:
                source = "override"
            elif a.name in place.given:
                source = f"line {place.line_of(a.name)}" if place.file == facts.file else "default"
            found.append(Origin(full, _one_line(value), source))
    return tuple(found)


def _one_line(value: object) -> str:
    """A value as text; what would break the line is escaped."""
    text = str(value)
    return text if text.isprintable() else repr(value)


def _derived(facts: Facts, train: TrainSettings) -> dict[str, tuple[str, str]]:
    draft, geometry, device = train.draft, facts.geometry, facts.device.name
    wanted = facts.train.draft
    config = facts.world.draft(wanted)
    heads = draft_heads(geometry, None if config is None else config.geometry)
    target = "the target's" if config is None else "the draft's config"
    vocabulary = "the smaller of 32000 and the target's vocabulary" if config is None else target
    fill = "the documents of a micro-step" if device == "cpu" else "fills the device"
    batch = (str(facts.micro_documents), "no size is given")
    known: dict[str, tuple[str, str]] = {
        "train.draft.vocab_size": (str(draft.draft_vocab_size), vocabulary),
        "train.draft.intermediate_size": (str(draft.intermediate_size), target),
        "train.draft.num_heads": (str(draft.num_heads), heads.heads_reason),
        "train.draft.num_kv_heads": (str(draft.num_kv_heads), heads.kv_reason),
        "train.draft.head_dim": (str(draft.head_dim), heads.dim_reason),
        "train.batch_size": ("not used", "pack_tokens fills micro-steps") if facts.micro_documents is None else batch,
        "train.pack_tokens": ("not used", "batch_size counts documents"),
        "train.kernels": ("each part's best", f"{facts.precision} on {facts.device.name}"),
        "train.precision": (train.precision, f"the device {device}"),
        "train.schedule_steps": ("known after preparation", "the steps that will run"),
        "train.max_steps": ("all of the data", "no limit is given"),
        "train.features.policy": (
            f"layers {list(draft.aux_layers)}, last hidden",
            f"Eagle3 on {geometry.num_layers} layers",
        ),
        "train.features.policy.layers": (str(list(draft.aux_layers)), f"Eagle3 on {geometry.num_layers} layers"),
        "train.features.policy.dtype": (facts.target_dtype, "the dtype the target computes in"),
        "train.features.target.config": (facts.world.configs[facts.target], "found by the target's name"),
        "topology.gpus": ("the first" if device != "cpu" else "none", f"the device {device}"),
        "topology.ranks": (str(facts.ranks), "the GPUs" if facts.trainers.gpus else "one process"),
        "topology.engine.gpus": ("the trainer's", "one process"),
        "topology.engine.dtype": (facts.target_dtype, f"the device {device}"),
        "topology.engine.packed": (str(facts.packed_capture), f"the device {device}"),
        "topology.engine.batch_size": (str(facts.capture_documents), fill),
    }
    if facts.apart:
        known |= _derived_apart(facts, fill)
    elif isinstance(facts.recipe.topology, Disaggregated):
        known |= {f"topology.{path}": ("not used", "features are recorded") for path in _idle(facts)}
        known["topology.trainers.gpus"] = known["topology.gpus"]
        known["topology.trainers.ranks"] = known["topology.ranks"]
    return known


def _derived_recording(facts: Facts, capture: CaptureSettings | CkptSettings) -> dict[str, tuple[str, str]]:
    """The same of a recording."""
    device = facts.device.name
    fill = "a capture batch" if device == "cpu" else "fills the device"
    return {
        "record.features.policy.layers": (
            str(list(capture.layers)),
            f"Eagle3 on {facts.geometry.num_layers} layers",
        ),
        "record.features.policy.dtype": (facts.target_dtype, "the dtype the target computes in"),
        "record.features.target.config": (facts.world.configs[facts.target], "found by the target's name"),
        "topology.gpus": ("the first" if device != "cpu" else "none", f"the device {device}"),
        "topology.ranks": ("1", "one process"),
        "topology.engine.gpus": ("the trainer's", "one process"),
        "topology.engine.dtype": (facts.target_dtype, f"the device {device}"),
        "topology.engine.packed": (str(facts.packed_capture), f"the device {device}"),
        "topology.engine.batch_size": (str(facts.capture_documents), fill),
    }


def _idle(facts: Facts) -> Iterator[str]:
    """The fields of a disaggregated topology that say how features are captured and wait."""
    yield from ("high_watermark", "low_watermark")
    for path, node in walk(facts.recipe.topology):
        if path:
            yield from (f"{path}.{a.name}" for a in attrs.fields(type(node)))


def _derived_apart(facts: Facts, fill: str) -> dict[str, tuple[str, str]]:
    """The same of processes that are apart."""
    high, step, device = least_documents(facts), facts.step_documents, facts.device.name
    later = "known after preparation"
    cpu = device == "cpu"
    known = {
        "topology.high_watermark": (later if high is None else str(high), "two steps and a capture batch"),
        "topology.low_watermark": (later if step is None else str(step), "one step"),
        "topology.store.path": ("features in the run's folder", "no folder is given"),
        "topology.store.master": ("started by the run", "no address is given"),
        "topology.store.max_gib": ("what the watermarks ask for", "no size is given"),
        "topology.trainers.ranks": (str(facts.ranks), "the GPUs" if facts.trainers.gpus else "one process"),
        "topology.trainers.gpus": _gpus(facts.gpus[-1], cpu),
    }
    for number, server in enumerate(facts.servers):
        path, gpus = f"topology.servers[{number}]", facts.gpus[number]
        known |= {
            f"{path}.gpus": _gpus(gpus, cpu),
            f"{path}.dtype": (facts.target_dtype, f"the device {device}"),
            f"{path}.packed": (str(facts.packed_capture), f"the device {device}"),
            f"{path}.batch_size": (str(facts.capture_documents), fill),
        }
        if isinstance(server, SGLang):
            known |= {
                f"{path}.tp": (str(len(gpus) or 1), "its GPUs"),
                f"{path}.python": ("python", "the run's"),
                f"{path}.url": ("started by the run", "no URL is given"),
                f"{path}.mem_fraction": ("SGLang's default", "no share is given"),
            }
    return known


def _gpus(gpus: tuple[int, ...], cpu: bool) -> tuple[str, str]:
    return ("none", "the device cpu") if cpu else (str(list(gpus)), "the first that nobody names")
