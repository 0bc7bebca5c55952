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
from specforge.compiler.strategy import knowledge
from specforge.plan import SCHEMA, Batch, Op, Plan, Port, Process, Role
from specforge.settings import (
    CaptureSettings,
    CheckpointSettings,
    EvaluateSettings,
    ExportSettings,
    Settings,
    SourceSettings,
    TargetSettings,
    TrainSettings,
)

ENGINE = "transformers"


def lower(graph: Graph, facts: Facts) -> Plan:
    """Each role becomes one process. The plan's operations keep the graph's names."""
    recipe = facts.recipe
    roles = tuple(_role(name, graph, facts) for name in graph.roles())
    train = next(op.settings for r in roles for op in r.ops if isinstance(op.settings, TrainSettings))
    target = _target(facts)
    batch = _batch(facts)
    capture = next(op.settings for r in roles for op in r.ops if isinstance(op.settings, CaptureSettings))
    estimate = Estimate(
        target=target,
        train=train,
        batch=batch,
        target_dtype=facts.target_dtype,
        capture=capture,
        max_length=recipe.train.features.source.max_length,
        device=facts.device.name,
    )
    exports = [n.spec.format for n in graph.of_kind("export")]
    keys = knowledge(recipe.train.strategy).export_keys(train.draft, "hf" if "hf" in exports else "sglang")
    return Plan(
        schema=SCHEMA,
        name=recipe.name,
        seed=recipe.seed,
        output_dir=recipe.output_dir.replace("{name}", recipe.name),
        target=target,
        device=facts.device,
        roles=roles,
        processes=tuple(Process(role.name, (role.name,)) for role in roles),
        files=facts.world.files,
        batch=batch,
        memory=estimate.memory(roles[0].name),
        flops=estimate.flops(),
        kernels=tuple(
            attrs.evolve(k, op=f"{n.name}.{k.op}") for n in graph.nodes for k in n.kernels if n.kind == "train"
        ),
        export_keys=keys if exports else (),
        warnings=_warnings(facts, estimate.total_bytes(roles[0].name)),
        base=str(facts.world.base),
        recipe=facts.file,
        origins=origins(facts, train),
    )


def _role(name: str, graph: Graph, facts: Facts) -> Role:
    ops = tuple(_op(graph.node(n), graph, facts) for n in graph.order() if graph.node(n).role == name)
    gpus = facts.recipe.topology.gpus or ()
    return Role(name, facts.device.name, facts.ranks, ENGINE, facts.target_dtype, ops, gpus)


def _op(node: Node, graph: Graph, facts: Facts) -> Op:
    inputs = tuple(
        Port(e.feature.name, e.feature, f"{e.source}.{e.feature.name}") for e in graph.inputs(node.name) if e.feature
    )
    outputs = tuple(Port(f.name, f) for f in graph.features(node.name))
    return Op(node.name, node.kind, inputs, outputs, _settings(node, graph, facts))


def _settings(node: Node, graph: Graph, facts: Facts) -> Settings:
    spec = node.spec
    if node.kind in ("conversations", "prompts"):
        template = facts.world.templates.get(getattr(spec, "chat_template", None) or "")
        return SourceSettings(
            kind=node.kind,
            path=spec.path,
            max_length=spec.max_length,
            max_rows=spec.max_rows,
            chat_template=template,
            strict=spec.strict,
            last_turn_only=getattr(spec, "last_turn_only", False),
            preformatted=getattr(spec, "preformatted", False),
        )
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
    if node.kind == "train":
        return _train(node, graph, facts)
    if node.kind == "evaluate":
        return EvaluateSettings(spec.every, spec.batch_size)
    if node.kind == "checkpoint":
        return CheckpointSettings(spec.every, spec.keep)
    return ExportSettings(spec.format)


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


def _target(facts: Facts) -> TargetSettings:
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
    train, micro = facts.recipe.train, facts.micro_documents
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


def _warnings(facts: Facts, resident_bytes: int) -> tuple[str, ...]:
    found: list[Any] = []
    memory, who = facts.device.memory_bytes, "the trainer" if facts.ranks == 1 else "every rank"
    if memory and resident_bytes > memory:
        found.append(
            f"{who} needs {resident_bytes / 2**30:.1f} GiB, and {facts.device.name} has "
            f"{memory / 2**30:.0f} GiB: lower batch_size or max_length"
        )
    if not facts.recipe.outputs:
        found.append("the recipe has no outputs: the run keeps its final checkpoint, and exports nothing")
    return tuple(found)
