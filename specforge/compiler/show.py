"""In: a Plan. Out: text for a person: what will run, what it costs and where each value came from."""

from __future__ import annotations

from specforge.compiler.columns import WIDTH, clipped, counted, flops, size, table, wrapped
from specforge.compiler.parameter_count import active_layer_parameters
from specforge.dsl.feature import Feature
from specforge.plan import Op, Plan
from specforge.settings import (
    CaptureSettings,
    CheckpointSettings,
    CkptSettings,
    EvaluateSettings,
    ExportSettings,
    Geometry,
    RecordedSettings,
    RecordSettings,
    SourceSettings,
    StoreSettings,
    TrainSettings,
)

LATER = "known after preparation"
# of a device's peak: what both sides are assumed to reach, for the comparison of one with the other
ASSUMED_SHARE = 0.5
KINDS = {
    "controller": "keeps the ledger, hands out capture batches",
    "capture_worker": "sends capture batches to its server",
    "store": "keeps features",
}
LOSS_PER = {
    "tokens": "supervised row",
    "rows": "row of the micro-step",
    "padded": "row of the micro-step, padded to its longest document",
}
CAPTURE_FLOPS = ("target prefill",)


def text(plan: Plan) -> str:
    """The whole plan, section by section, at most 120 columns; the same plan gives the same text."""
    sections = (
        ("", _head(plan)),
        ("processes", _processes(plan)),
        ("services", _services(plan)),
        ("operations, in order", _operations(plan)),
        ("batch", _batch(plan)),
        ("learning rate", _schedule(plan)),
        ("memory per rank", _memory(plan)),
        (f"FLOPs per {'micro-step, all rows supervised' if plan.ops('train') else 'capture batch'}", _flops(plan)),
        ("between capture and training", _control(plan)),
        ("supply and demand of an optimizer step of full documents", _flow(plan)),
        ("kernels", table((k.op, k.implementation, k.reason) for k in plan.kernels)),
        ("files", table((f.path, f.use, size(f.bytes), f"sha256 {f.sha256[:12]}") for f in plan.files)),
        ("export keys", wrapped(plan.export_keys)),
        ("where values came from", table((o.path, o.value, o.source) for o in plan.origins)),
        ("warnings", list(plan.warnings)),
    )
    lines: list[str] = []
    for title, rows in sections:
        if rows:
            lines += ["", title] if title else []
            lines += [clipped(f"  {row}" if title else row, WIDTH) for row in rows]
    return "\n".join(lines) + "\n"


def _head(plan: Plan) -> list[str]:
    geometry, seed = plan.target.geometry, plan.target.random_seed
    weights = "loaded weights" if seed is None else f"random weights, seed {seed}"
    lines = [
        f"plan {plan.name}  {plan.digest[:16]}  seed {plan.seed}  run folder {plan.output_dir}",
        f"target {plan.target.name}: {plan.target.parameter_count:,} parameters, {weights}",
        f"  {geometry.model_type}, {geometry.num_layers} layers, hidden {geometry.hidden_size}, inner "
        f"{geometry.intermediate_size}, heads {geometry.num_heads}/{geometry.num_kv_heads} of {geometry.head_dim}, "
        f"vocabulary {geometry.vocab_size}",
        *_parts(geometry),
    ]
    return [*lines, *_draft(plan)] if plan.ops("train") else lines


def _draft(plan: Plan) -> list[str]:
    train = _train(plan)
    draft = train.draft
    trained = sum(p.count for p in draft.parameters if p.trainable)
    return [
        f"draft {draft.architecture}: {trained:,} trained parameters",
        f"  hidden {draft.hidden_size}, inner {draft.intermediate_size}, heads {draft.num_heads}/{draft.num_kv_heads} "
        f"of {draft.head_dim}, vocabulary {draft.draft_vocab_size}",
        f"strategy {train.strategy}: {train.eagle3.ttt_length} TTT steps, weights {train.eagle3.position_decay:g}^k, "
        f"loss per {LOSS_PER[train.eagle3.reduction]}" + (f", LK {train.eagle3.lk}" if train.eagle3.lk else ""),
    ]


def _parts(geometry: Geometry) -> list[str]:
    """What a target has beyond plain attention, MLPs and logits."""
    lines, experts, latent, logits = [], geometry.experts, geometry.latent, geometry.logits
    if experts:
        shared = f" and {experts.shared} shared" if experts.shared else ""
        lines.append(
            f"  experts on {experts.layers} layers: {experts.active} of {experts.count}{shared}, inner "
            f"{experts.intermediate_size}; {active_layer_parameters(geometry):,} parameters multiply a token"
        )
    if latent:
        queries = "" if latent.query_rank is None else f"queries from {latent.query_rank}, "
        lines.append(
            f"  latent attention: {queries}keys and values from {latent.kv_rank}, heads of {latent.nope_dim} + "
            f"{latent.rope_dim} and {latent.value_dim}"
        )
    after = [f"scaled by {logits.scale:g}"] * (logits.scale != 1)
    after += [f"soft-capped at {logits.softcap:g}"] if logits.softcap is not None else []
    lines += [f"  logits {', '.join(after)}"] if after else []
    return lines


def _train(plan: Plan) -> TrainSettings:
    return next(op.settings for op in plan.ops("train") if isinstance(op.settings, TrainSettings))


def _processes(plan: Plan) -> list[str]:
    rows = []
    for process in plan.processes:
        does = [_role(plan, name) for name in process.roles]
        where = f"GPU{'s' * (len(process.gpus) > 1)} {', '.join(map(str, process.gpus))}" if process.gpus else ""
        rows.append((process.name, where, "; ".join(does) or KINDS[process.kind], " ".join(process.command)))
        if process.url is not None:
            rows[-1] = (*rows[-1][:3], f"runs already at {process.url}")
    return [line.rstrip() for line in table(rows)]


def _role(plan: Plan, name: str) -> str:
    role = plan.role(name)
    trains = any(op.kind == "train" for op in role.ops)
    records = any(op.kind == "record" for op in role.ops)
    if not trains and not records and not role.engine:
        return "prepares documents, starts and watches the others"
    where = f"{counted(role.ranks, 'rank')} on {role.device}" if trains else f"on {role.device}"
    target = f", target {role.target_dtype} in {role.engine}" if role.engine else ""
    does = f", draft {_train(plan).precision}" if trains else ", records" if records else ""
    return f"{where}{target}{does}"


def _services(plan: Plan) -> list[str]:
    rows = []
    for process in plan.processes:
        for service in process.services:
            port = "a free port" if service.port == 0 else f"port {service.port}"
            where = process.url or f"127.0.0.1, {port}"
            ready = f"ready when {service.readiness} answers, within {service.timeout_s:g} s"
            rows.append((service.name, f"of {process.name}", service.protocol, where, ready))
    return table(rows)


def _control(plan: Plan) -> list[str]:
    found = [op.settings for op in plan.ops("put") if isinstance(op.settings, StoreSettings)]
    if not found or plan.control is None or plan.flow is None:
        return []
    store, control, flow = found[0], plan.control, plan.flow
    high, low = (f"{n} documents" for n in (store.high_documents, store.low_documents))
    length = max(op.settings.max_length for op in plan.ops() if isinstance(op.settings, SourceSettings))
    lines = [f"capture rests at {high} that are not trained yet, goes on at {low}"]
    if store.high_documents is None:
        waiting = 2 * flow.step_tokens * flow.bytes_per_token
        lines = ["capture rests at two optimizer steps and a capture batch; how many documents they are is " + LATER]
        lines.append(f"full packs of two steps: {size(waiting)}")
    else:
        waiting = store.high_documents * length * flow.bytes_per_token
        lines.append(f"full documents at the high watermark: {size(waiting)}")
    lines.append(
        f"what the store holds at most is {LATER}"
        if store.pool_bytes is None
        else f"the store holds up to {size(store.pool_bytes)}"
    )
    kept = {"prompts": "go once they are trained, and are captured again after a crash"}
    lines.append(f"features {kept.get(store.retain, 'stay until a checkpoint covers them')}")
    lines.append(
        f"a capture batch is leased for {control.lease_s:g} s and tried {control.attempts} times; the trainer waits at "
        f"most {control.patience_s:g} s while nothing changes"
    )
    return lines


def _flow(plan: Plan) -> list[str]:
    """Both sides of an optimizer step of full documents, at half of the devices' peak."""
    flow = plan.flow
    if flow is None:
        return []
    wire = flow.bytes_per_token * flow.step_tokens
    rows = [
        ("capture", flops(flow.capture_flops), f"on {counted(flow.capture_devices, 'device')}"),
        ("training", flops(flow.train_flops), f"on {counted(flow.train_devices, 'device')}"),
    ]
    travels = "through the store" if flow.wire else "in memory"
    lines = [*table(rows), f"features {size(wire)} an optimizer step, {travels}"]
    if not plan.device.tflops:
        return [*lines, "how long either takes is not known: no speed is assumed for a CPU"]
    rate = plan.device.tflops * 1e12 * ASSUMED_SHARE
    capture = flow.capture_flops / flow.capture_devices / rate
    training = flow.train_flops / flow.train_devices / rate
    if not flow.wire:
        share = capture / (capture + training)
        return [*lines, f"at {ASSUMED_SHARE:.0%} of the peak: capture is {share:.0%} of a step's time"]
    slower, seconds = ("capture", capture) if capture > training else ("training", training)
    return [
        *lines,
        f"at {ASSUMED_SHARE:.0%} of the peak: capture {capture * 1e3:.3g} ms, training {training * 1e3:.3g} ms a step; "
        f"{slower} is the bottleneck",
        f"on the wire then: {wire / seconds / 1e9:.3g} GB/s",
    ]


def _operations(plan: Plan) -> list[str]:
    lines = []
    for role in plan.roles:
        lines.append(f"role {role.name}")
        for op in role.ops:
            length = document_length(plan, op)
            lines.append(f"  {op.name}: {settings_text(plan, op)}")
            lines += [f"      <- {p.source}" for p in op.inputs]
            lines += [f"      -> {p.name} {feature_text(p.feature, length)}" for p in op.outputs]
    return lines


def document_length(plan: Plan, op: Op) -> int:
    """Tokens of a full document that reaches an operation; 0 where no document does."""
    if isinstance(op.settings, SourceSettings | RecordedSettings | CkptSettings):
        return op.settings.max_length
    sources = [plan.op(port.source.partition(".")[0]) for port in op.inputs]
    read = [s for s in sources if not isinstance(s.settings, TrainSettings)]
    return max((document_length(plan, source) for source in read), default=0)


def feature_text(feature: Feature, length: int) -> str:
    """Shape, dtype, layers, norm and bytes of what travels along an edge, for documents of `length` tokens."""
    if not feature.width:
        return "weights"
    shape = "[T]" if feature.width == 1 else f"[T, {feature.width}]"
    notes = [f"layers {', '.join(map(str, feature.layers))}"] if feature.layers else []
    notes += [f"{feature.norm}-norm"] if feature.norm else []
    per_token = feature.bytes_per_token
    cost = f"{per_token} B/token, {size(per_token * length)} for {length} tokens"
    return "  ".join([f"{shape} {feature.dtype}", *notes, cost])


def settings_text(plan: Plan, op: Op) -> str:
    """What an operation does, in one line."""
    s = op.settings
    if isinstance(s, SourceSettings) and s.parts:
        return " + ".join(f"{weight:g} x {part.path}" for part, weight in zip(s.parts, s.weights))
    if isinstance(s, SourceSettings):
        rows = "all rows" if s.max_rows is None else f"first {counted(s.max_rows, 'row')}"
        rows += " of rendered text" if s.preformatted else ""
        notes = ", last turn only" if s.last_turn_only else ""
        notes += f", written as {s.chat_family}" if s.chat_family else ""
        notes += f", replies between {s.reply_header!r} and {s.reply_end!r}" if s.reply_header else ""
        return f"{s.path}, {rows}, cut at {s.max_length} tokens{notes}{', strict' if s.strict else ''}"
    if isinstance(s, CaptureSettings):
        layers = ", ".join(map(str, s.layers))
        if any(op in role.ops and role.engine == "sglang" for role in plan.roles):
            documents = counted(s.batch_documents, "document")
            return f"requests of {documents} to SGLang, which returns layers {layers} and the final norm"
        laid = f"{counted(s.batch_documents, 'document')}, {'end to end' if s.packed else 'padded'}"
        return f"forward of {laid}, hooks on layers {layers} and the final norm"
    if isinstance(s, RecordedSettings):
        return f"{s.path}, {counted(s.documents, 'document')}, {s.tokens:,} tokens, at most {s.max_length} in one"
    if isinstance(s, CkptSettings):
        return f"{s.path}, .ckpt files of layers {', '.join(map(str, s.layers))}, at most {s.max_length} tokens in one"
    if isinstance(s, RecordSettings):
        return f"into {s.path}, in shards of whole capture batches"
    if isinstance(s, StoreSettings):
        place = s.path or "the run's folder" if s.kind == "shared_dir" else s.master or "the run's master"
        return f"{'into' if op.kind == 'put' else 'from'} {s.kind} ({s.protocol}), {place}"
    if isinstance(s, TrainSettings):
        return f"{s.strategy}, AdamW, clip {s.max_grad_norm:g}, precision {s.precision}, float32 masters"
    if isinstance(s, EvaluateSettings):
        return f"teacher-forced, every {s.every} steps and at the end"
    if isinstance(s, CheckpointSettings):
        return f"{f'every {s.every} steps and ' if s.every else ''}at the end, keeps {s.keep} and the best"
    assert isinstance(s, ExportSettings)
    return f"{s.format}, at the end"


def _batch(plan: Plan) -> list[str]:
    b = plan.batch
    if not plan.ops("train"):
        documents = counted(b.step_documents or 0, "document")
        return [f"{documents} and at most {b.step_tokens_at_most:,} tokens a forward, in file order, once"]
    most = f", at most {b.max_steps} steps" if b.max_steps is not None else ""
    micro, ranks = counted(b.accumulation, "micro-step"), counted(b.ranks, "rank")
    tokens = f"at most {b.step_tokens_at_most:,} tokens an optimizer step"
    share = [f"a rank has {micro} of each step; gradients are summed once a step"] if b.ranks > 1 else []
    if b.micro_documents is None or b.step_documents is None:
        return [
            f"a pack of at most {b.pack_tokens:,} tokens × {micro} × {ranks} = {tokens}",
            *share,
            f"{counted(b.epochs, 'epoch')}{most}; documents per step, steps per epoch: {LATER}",
        ]
    return [
        f"{counted(b.micro_documents, 'document')} × {micro} × {ranks} = {counted(b.step_documents, 'document')} "
        f"and {tokens}",
        *share,
        f"{counted(b.epochs, 'epoch')}{most}; steps per epoch: {LATER}",
    ]


def _schedule(plan: Plan) -> list[str]:
    if not plan.ops("train"):
        return []
    t, b = _train(plan), plan.batch
    horizon = LATER if b.schedule_steps is None else f"{b.schedule_steps} steps"
    warm = f"{t.warmup_ratio:g} of the horizon" if b.warmup_steps is None else f"{b.warmup_steps} steps"
    return [f"{t.learning_rate:g}, {t.schedule}, horizon {horizon}, linear warm-up over {warm}"]


def _memory(plan: Plan) -> list[str]:
    lines = []
    roles = tuple(dict.fromkeys(p.role for p in plan.memory))
    for role in roles:
        parts = [p for p in plan.memory if p.role == role]
        rows = [(p.name, size(p.bytes), "exact" if p.exact else "at most", p.note) for p in parts]
        total = sum(p.bytes for p in parts)
        limit = plan.device.memory_bytes
        verdict = "no limit is assumed for a CPU"
        if limit:
            share = f"{total / limit:.0%} of {plan.device.name}'s {size(limit)}"
            verdict = f"fits: {share}" if total <= limit else f"DOES NOT FIT: {share}"
        lines += [f"role {role}"] if len(roles) > 1 else []
        lines += [*table(rows), f"total {size(total)}; {verdict}"]
    return lines


def _flops(plan: Plan) -> list[str]:
    if not plan.flops:
        return []
    apart = plan.flow is not None and plan.flow.wire
    groups = {"total": plan.flops}
    if apart:  # on other devices
        captured = tuple(p for p in plan.flops if p.name in CAPTURE_FLOPS)
        groups = {"capture": captured, "training": tuple(p for p in plan.flops if p not in captured)}
    rows, times = [("", "needed", "computed")], []
    for name, parts in groups.items():
        rows += [(p.name, flops(p.needed), flops(p.computed)) for p in parts]
        needed, computed = sum(p.needed for p in parts), sum(p.computed for p in parts)
        if len(parts) > 1:
            rows.append((name, flops(needed), flops(computed)))
        if plan.device.tflops:
            milliseconds = computed / (plan.device.tflops * 1e12) * 1e3
            times.append(f"{f'{name} ' if apart else ''}{milliseconds:.1f} ms")
    peak = [f"{', '.join(times)} at {plan.device.name}'s {plan.device.tflops:g} TFLOP/s"] if times else []
    return [*table(rows), *peak]
