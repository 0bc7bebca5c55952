"""In: the finished Graph and the facts. Out: the Plan: every value resolved, every size counted."""

from __future__ import annotations

import math
from typing import Any

import attrs

from specforge.compiler.estimate import Estimate
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.origin import origins
from specforge.compiler.parameter_count import parameter_count
from specforge.compiler.passes.place import CAPTURE, DATA, TRAINER
from specforge.compiler.processes import processes
from specforge.compiler.strategy import knowledge
from specforge.dsl.chat_family import FAMILIES
from specforge.dsl.engine import SGLang
from specforge.dsl.feature import DTYPE_BYTES
from specforge.dsl.source import DOCUMENTS, Mix
from specforge.dsl.store import Mooncake
from specforge.dsl.topology import Disaggregated
from specforge.plan import SCHEMA, Batch, Control, Flow, MemoryPart, Op, Plan, Port, Role
from specforge.settings import (
    CaptureSettings,
    CheckpointSettings,
    CkptSettings,
    EvaluateSettings,
    ExportSettings,
    RecordedSettings,
    RecordSettings,
    Settings,
    SourceSettings,
    TargetSettings,
    TrainSettings,
)

# Bounds of the control plane. A lease outlasts the slowest capture batch; a failing batch is tried again elsewhere.
CONTROL = Control(lease_s=300.0, attempts=3, patience_s=900.0, workers_per_server=1)


def lower(graph: Graph, facts: Facts) -> Plan:
    """Each role becomes processes. The plan's operations keep the graph's names. Recordings: lower_recording.py."""
    recipe, training = facts.recipe, facts.train
    roles = tuple(role_of(name, graph, facts) for name in graph.roles())
    train = next(op.settings for r in roles for op in r.ops if isinstance(op.settings, TrainSettings))
    target = target_of(facts)
    batch = _batch(facts)
    found = [op.settings for r in roles for op in r.ops]
    capture = next((s for s in found if isinstance(s, CaptureSettings)), None)
    recorded = next((s for s in found if isinstance(s, RecordedSettings)), None)
    assert (capture is None) != (recorded is None), "features are captured or read"
    estimate = Estimate(
        target=target,
        train=train,
        batch=batch,
        target_dtype=facts.target_dtype,
        capture=capture or CaptureSettings(train.draft.aux_layers, True, recorded.dtype if recorded else "", 1),
        max_length=facts.max_length,
        device=facts.device.name,
        triton=frozenset(
            k.op for n in graph.nodes for k in n.kernels if n.kind == "train" and k.implementation == "triton"
        ),
        evaluation_tokens=max((e.batch_size * facts.longest(e.source) for e in recipe.evaluate), default=0),
    )
    memory = estimate.memory(CAPTURE if facts.apart or recorded else TRAINER, TRAINER, _split(facts))
    flops = estimate.flops()
    if recorded:  # nobody runs the target
        memory = tuple(part for part in memory if part.role == TRAINER)
        flops = tuple(part for part in flops if part.name != "target prefill")
    if facts.apart and all(isinstance(s, SGLang) and s.url for s in facts.servers):  # their memory is not the run's
        memory = tuple(part for part in memory if part.role == TRAINER)
    exports = [n.spec.format for n in graph.of_kind("export")]
    keys = knowledge(training.strategy).export_keys(train.draft, "hf" if "hf" in exports else "sglang")
    return Plan(
        schema=SCHEMA,
        name=recipe.name,
        seed=recipe.seed,
        output_dir=recipe.output_dir.replace("{name}", recipe.name),
        target=target,
        device=facts.device,
        roles=roles,
        processes=processes(facts),
        files=facts.world.files,
        batch=batch,
        memory=memory,
        flops=flops,
        kernels=tuple(
            attrs.evolve(k, op=f"{n.name}.{k.op}") for n in graph.nodes for k in n.kernels if n.kind == "train"
        ),
        export_keys=keys if exports else (),
        warnings=_warnings(facts, memory),
        base=str(facts.world.base),
        recipe=facts.file,
        origins=origins(facts, train),
        control=CONTROL if facts.apart else None,
        flow=None if recorded else _flow(facts, estimate, batch),
    )


def role_of(name: str, graph: Graph, facts: Facts) -> Role:
    """A role with its operations in order."""
    ops = tuple(_op(graph.node(n), graph, facts) for n in graph.order() if graph.node(n).role == name)
    engine = type(facts.engine).__name__.lower() if any(op.kind == "capture" for op in ops) else ""
    ranks = {CAPTURE: len(facts.servers), TRAINER: facts.ranks}.get(name, 1)
    gpus = {CAPTURE: sum(facts.gpus[:-1], ()), DATA: ()}.get(name, facts.gpus[-1])
    device = "cpu" if name == DATA else facts.device.name
    return Role(name, device, ranks, engine, facts.target_dtype, ops, gpus)


def _op(node: Node, graph: Graph, facts: Facts) -> Op:
    inputs = tuple(
        Port(e.feature.name, e.feature, f"{e.source}.{e.feature.name}") for e in graph.inputs(node.name) if e.feature
    )
    outputs = tuple(Port(f.name, f) for f in graph.features(node.name))
    return Op(node.name, node.kind, inputs, outputs, _settings(node, graph, facts))


def _settings(node: Node, graph: Graph, facts: Facts) -> Settings:
    spec = node.spec
    if isinstance(spec, DOCUMENTS):
        return _source(spec, facts)
    if node.kind == "recorded":
        manifest = facts.world.recording(spec.source)
        made = manifest.conditions
        return RecordedSettings(
            path=spec.source.path,
            layers=made.layers,
            last_hidden=made.last_hidden,
            dtype=made.dtype,
            computed=made.computed,
            documents=manifest.documents,
            tokens=manifest.tokens,
            max_length=manifest.longest,
        )
    if node.kind == "ckpt":
        given = {f.name: f for f in graph.features(node.name)}
        aux, last = given["aux"], "last_hidden" in given
        return CkptSettings(spec.source.path, spec.source.max_length, aux.layers, last, aux.dtype)
    if node.kind == "record":
        return RecordSettings(spec.path, spec.nonfinite_budget)
    if node.kind == "capture":
        given = {f.name: f for f in graph.features(node.name)}
        documents = facts.capture_documents
        return CaptureSettings(
            layers=given["aux"].layers,
            last_hidden="last_hidden" in given,
            dtype=given["aux"].dtype,
            batch_documents=documents,
            packed=facts.packed_capture,
        )
    if node.store is not None:
        return node.store
    if node.kind == "train":
        return _train(node, graph, facts)
    if node.kind == "evaluate":
        return EvaluateSettings(spec.every, spec.batch_size)
    if node.kind == "checkpoint":
        return CheckpointSettings(spec.every, spec.keep)
    return ExportSettings(spec.format)


def _source(spec: Any, facts: Facts) -> SourceSettings:
    if isinstance(spec, Mix):
        parts = tuple(_source(part, facts) for part in spec.sources)
        label, length = " + ".join(part.path for part in parts), spec.max_length
        plain = SourceSettings("mix", label, length, None, None, False, False, False)
        weights = tuple(map(float, spec.weights or (1,) * len(parts)))
        return attrs.evolve(plain, parts=parts, weights=weights, seed=facts.recipe.seed)
    template = facts.world.templates.get(getattr(spec, "chat_template", None) or "")
    family = getattr(spec, "chat_family", None)
    return SourceSettings(
        kind=type(spec).__name__.lower(),
        path=spec.path,
        max_length=spec.max_length,
        max_rows=spec.max_rows,
        chat_template=template if family is None else FAMILIES[family].template,
        strict=spec.strict,
        last_turn_only=getattr(spec, "last_turn_only", False),
        preformatted=getattr(spec, "preformatted", False),
        chat_family=family,
        reply_header=getattr(spec, "reply_header", None),
        reply_end=getattr(spec, "reply_end", None),
    )


def _train(node: Node, graph: Graph, facts: Facts) -> TrainSettings:
    spec, known = node.spec, knowledge(node.spec.strategy)
    aux = next(e.feature for e in graph.inputs(node.name) if e.feature is not None and e.feature.name == "aux")
    return TrainSettings(
        strategy=known.name,
        draft=known.draft(facts, aux.layers),
        eagle3=known.settings(facts),
        batch_documents=facts.micro_documents,
        accumulation=spec.accumulation,
        epochs=spec.epochs,
        max_steps=spec.max_steps,
        schedule=spec.schedule,
        schedule_steps=spec.schedule_steps,
        warmup_ratio=float(spec.warmup_ratio),
        learning_rate=float(spec.learning_rate),
        betas=(float(spec.betas[0]), float(spec.betas[1])),
        eps=float(spec.eps),
        weight_decay=float(spec.weight_decay),
        max_grad_norm=float(spec.max_grad_norm),
        precision=facts.precision,
        nonfinite_budget=spec.nonfinite_budget,
        log_every=spec.log_every,
        pack_tokens=spec.pack_tokens,
    )


def target_of(facts: Facts) -> TargetSettings:
    """The target, resolved."""
    target = facts.target
    return TargetSettings(
        name=target.name,
        folder=facts.world.folders.get(target),
        config=facts.world.configs[target],
        random_seed=facts.recipe.seed if target.random_weights else None,
        geometry=facts.geometry,
        parameter_count=parameter_count(facts.geometry),
    )


def _batch(facts: Facts) -> Batch:
    train, micro = facts.train, facts.micro_documents
    packs = train.accumulation * facts.ranks
    horizon = train.schedule_steps
    return Batch(
        micro_documents=micro,
        accumulation=train.accumulation,
        ranks=facts.ranks,
        step_documents=None if micro is None else micro * packs,
        step_tokens_at_most=packs * facts.micro_tokens,
        epochs=train.epochs,
        max_steps=train.max_steps,
        schedule_steps=horizon,
        warmup_steps=None if horizon is None else math.floor(train.warmup_ratio * horizon),
        pack_tokens=train.pack_tokens,
    )


def _split(facts: Facts) -> int:
    """GPUs that hold one target together."""
    engine = facts.engine
    return engine.tp or len(facts.gpus[0]) or 1 if isinstance(engine, SGLang) else 1


def _flow(facts: Facts, estimate: Estimate, batch: Batch) -> Flow:
    micro_steps = batch.accumulation * batch.ranks
    prefill, training = 0, 0
    for part in estimate.flops():
        if part.name == "target prefill":
            prefill = part.computed * micro_steps
        else:
            training += part.computed * micro_steps
    captured = (len(estimate.train.draft.aux_layers) + 1) * estimate.train.draft.target_hidden_size
    return Flow(
        capture_flops=prefill,
        capture_devices=len(facts.servers) * _split(facts) if facts.apart else facts.ranks,
        train_flops=training,
        train_devices=facts.ranks,
        bytes_per_token=captured * DTYPE_BYTES[estimate.capture.dtype],
        step_tokens=batch.step_tokens_at_most,
        wire=facts.apart,
    )


def _warnings(facts: Facts, parts: tuple[MemoryPart, ...]) -> tuple[str, ...]:
    found: list[Any] = []
    memory = facts.device.memory_bytes
    for role in dict.fromkeys(p.role for p in parts):
        resident = sum(p.bytes for p in parts if p.role == role)
        if memory and resident > memory:
            who = "every capture server" if role == CAPTURE else "the trainer" if facts.ranks == 1 else "every rank"
            weights = sum(p.bytes for p in parts if p.role == role and p.name == "target weights")
            fix = "give it more GPUs" if role == CAPTURE else "lower batch_size or max_length"
            # no smaller batch helps then
            if role != CAPTURE and weights > memory:
                fix = "split the target over GPUs with Disaggregated"
            found.append(
                f"{who} needs {resident / 2**30:.1f} GiB, and {facts.device.name} has {memory / 2**30:.0f} GiB: {fix}"
            )
    if facts.apart and isinstance(facts.disaggregated.store, Mooncake):
        found.append(
            "Mooncake's clients listen on all interfaces, at random ports from 15000 to 17000, without a password: "
            "close these ports to other hosts"
        )
    if not facts.apart and isinstance(facts.recipe.topology, Disaggregated):
        found.append("the features are recorded: the servers and the store of Disaggregated are not started")
    if facts.recipe.train is not None and not facts.train.packing and facts.train.strategy.reduction == "tokens":
        found.append(
            "packing=False changes nothing: no padding is computed, and reduction='tokens' counts supervised rows only"
        )
    if not facts.recipe.outputs:
        found.append("the recipe has no outputs: the run keeps its final checkpoint, and exports nothing")
    return tuple(found)
