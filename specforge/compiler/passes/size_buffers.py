"""In: a graph with transfers. Out: every put and get with its store: what it holds, and when capture waits."""

from __future__ import annotations

import attrs

from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph
from specforge.compiler.strategy import knowledge
from specforge.dsl.output import Checkpoint
from specforge.dsl.store import Mooncake, SharedDir, Store
from specforge.settings import StoreSettings

GIB = 2**30


def size_buffers(graph: Graph, facts: Facts) -> Graph:
    """Two optimizer steps and a capture batch may wait; `retain="features"` keeps a checkpoint interval beside them."""
    transfers = [*graph.of_kind("put"), *graph.of_kind("get")]
    return graph.with_nodes(attrs.evolve(n, store=_store(n.spec, facts)) for n in transfers)


def least_documents(facts: Facts) -> int | None:
    """Documents that must be able to wait, or the run could stand still; None where packs are filled by tokens."""
    step = facts.step_documents
    return None if step is None else 2 * step + facts.capture_documents


def retained_documents(facts: Facts) -> int | None:
    """Documents that `retain="features"` keeps until a checkpoint covers them; None where that is not known."""
    recipe = facts.recipe
    every = next((c.every for c in recipe.outputs if isinstance(c, Checkpoint)), 0) or facts.train.max_steps
    step = facts.step_documents
    return None if every is None or step is None else every * step


def bytes_per_document(facts: Facts) -> int:
    """Features of a document at full length."""
    needs = knowledge(facts.train.strategy).needs(facts.geometry, facts.features.policy, facts.target_dtype)
    return sum(f.bytes_per_token for f in needs) * facts.max_length


def pool_bytes(facts: Facts, high: int | None) -> int | None:
    """What the store must hold: documents at the high watermark, and those that are retained."""
    if high is None:
        return None
    kept: int | None = 0
    if facts.disaggregated.retain == "features":
        kept = retained_documents(facts)
    return None if kept is None else (high + kept) * bytes_per_document(facts)


def _store(spec: Store, facts: Facts) -> StoreSettings:
    topology, step = facts.disaggregated, facts.step_documents
    high = topology.high_watermark or least_documents(facts)
    low = topology.low_watermark or (step if step is None or high is None else min(step, high - 1))
    return StoreSettings(
        kind="shared_dir" if isinstance(spec, SharedDir) else "mooncake",
        path=spec.path if isinstance(spec, SharedDir) else None,
        master=spec.master if isinstance(spec, Mooncake) else None,
        protocol=spec.protocol if isinstance(spec, Mooncake) else "file",
        high_documents=high,
        low_documents=low,
        pool_bytes=pool_bytes(facts, high) if spec.max_gib is None else int(spec.max_gib * GIB),
        retain=topology.retain,
    )
