"""In: the finished Graph of a recording and the facts. Out: its Plan: what is captured, and what that costs."""

from __future__ import annotations

from specforge.compiler.estimate import prefill_bytes, prefill_flops
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.compiler.lower import role_of, target_of
from specforge.compiler.origin import origins
from specforge.compiler.passes.place import RECORDER
from specforge.compiler.processes import processes
from specforge.dsl.feature import DTYPE_BYTES
from specforge.plan import SCHEMA, Batch, MemoryPart, Plan
from specforge.settings import CaptureSettings, CkptSettings


def lower_recording(graph: Graph, facts: Facts) -> Plan:
    """A batch is a capture batch: documents that go through the target together, in file order."""
    recipe, target = facts.recipe, target_of(facts)
    role = role_of(RECORDER, graph, facts)
    found = next(op.settings for op in role.ops if isinstance(op.settings, CaptureSettings | CkptSettings))
    runs = isinstance(found, CaptureSettings)
    documents = found.batch_documents if isinstance(found, CaptureSettings) else 1
    tokens = documents * facts.max_length
    weights = target.parameter_count * DTYPE_BYTES[facts.target_dtype]
    kept = tokens * sum(
        feature.bytes_per_token
        for feature in graph.features("capture" if runs else "ckpt")
        if feature.layers or feature.norm
    )
    prefill = prefill_bytes(target.geometry, tokens, facts.target_dtype)
    together = f"of {documents} document{'s' * (documents > 1)} captured together"
    memory: tuple[MemoryPart, ...] = (
        MemoryPart(RECORDER, "target weights", weights, True, f"{target.parameter_count:,} parameters"),
        MemoryPart(RECORDER, "features", kept, True, together),
        MemoryPart(RECORDER, "prefill", prefill, False, "the target's widest layer"),
    )
    if not runs:  # the target is not here
        memory = tuple(part for part in memory if part.name == "features")
    resident, limit = sum(part.bytes for part in memory), facts.device.memory_bytes
    warnings = (
        f"the recorder needs {resident / 2**30:.1f} GiB, and {facts.device.name} has {limit / 2**30:.0f} GiB: lower "
        "max_length or topology.engine.batch_size",
    )
    return Plan(
        schema=SCHEMA,
        name=recipe.name,
        seed=recipe.seed,
        output_dir=recipe.output_dir.replace("{name}", recipe.name),
        target=target,
        device=facts.device,
        roles=(role,),
        processes=processes(facts),
        files=facts.world.files,
        batch=Batch(documents, 1, 1, documents, tokens, 1, None, None, None),
        memory=memory,
        flops=(prefill_flops(target.geometry, documents, facts.max_length),) if runs else (),
        kernels=(),
        export_keys=(),
        warnings=warnings if limit and resident > limit else (),
        base=str(facts.world.base),
        recipe=facts.file,
        origins=origins(facts, found),
    )
