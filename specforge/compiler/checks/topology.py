"""In: a recipe's topology. Out: problems of its device, of the dtypes on it, and of what waits between processes."""

from __future__ import annotations

from collections.abc import Iterator

from specforge.compiler.devices import DEVICES
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.parameter_count import parameter_count
from specforge.compiler.passes.size_buffers import bytes_per_document, least_documents, retained_documents
from specforge.dsl.engine import SGLang
from specforge.dsl.feature import DTYPE_BYTES
from specforge.dsl.node import problem_of
from specforge.dsl.output import Checkpoint
from specforge.dsl.problem import Problem
from specforge.dsl.rule import nearest
from specforge.dsl.source import Recorded

GIB = 2**30
# slots of its context that SGLang reserves beyond a prompt
SGLANG_RESERVED = 7


def device_known(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    topology = facts.recipe.topology
    if topology.device not in DEVICES:
        what = f"{type(topology).__name__}.device is {topology.device!r}, and the device table has no such entry"
        yield problem_of(topology, "device", "device-unknown", what, nearest(topology.device, DEVICES))


def dtype_suits_device(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if facts.recipe.topology.device == "cpu" and facts.engine.dtype == "float16":
        what = f"{type(facts.engine).__name__}.dtype is 'float16', and a CPU has no fast float16 arithmetic"
        fix = "set dtype='float32' or 'bfloat16', or name a GPU in the topology"
        yield problem_of(facts.engine, "dtype", "dtype-device", what, fix)


def watermark_holds_steps(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if not facts.apart or facts.disaggregated.high_watermark is None:
        return
    high, least = facts.disaggregated.high_watermark, least_documents(facts)
    if least is not None and high < least:
        step = facts.step_documents
        what = f"Disaggregated.high_watermark is {high}, and two optimizer steps of {step} documents with a capture "
        what += f"batch of {facts.capture_documents} are {least}: the run would stand still"
        fix = f"set high_watermark={least} or more, or leave it out"
        yield problem_of(facts.disaggregated, "high_watermark", "watermark-below-step", what, fix)
    packs = 2 * facts.train.accumulation * facts.ranks
    if least is None and high < packs:
        what = (
            f"Disaggregated.high_watermark is {high}, and two optimizer steps are {packs} packs of at least a document"
        )
        fix = "leave it out: how many documents the packs hold is known after preparation"
        yield problem_of(facts.disaggregated, "high_watermark", "watermark-below-step", what, fix)


def low_watermark_below_high(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    """Where both are given, the node says so itself."""
    if not facts.apart or facts.disaggregated.low_watermark is None or facts.disaggregated.high_watermark is not None:
        return
    low, high = facts.disaggregated.low_watermark, least_documents(facts)
    if high is not None and low >= high:
        what = f"Disaggregated.low_watermark is {low}, and capture stops at {high} documents, two optimizer steps and "
        what += "a capture batch: it would never rest"
        fix = f"set low_watermark below {high}, or high_watermark above {low}"
        yield problem_of(facts.disaggregated, "low_watermark", "watermark-low", what, fix)


def server_holds_documents(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    """A document beyond the target's whole context is another rule's."""
    source, context = facts.train.features.source, facts.geometry.max_position_embeddings
    if isinstance(source, Recorded):
        return
    most = context - SGLANG_RESERVED
    if isinstance(facts.engine, SGLang) and most < source.max_length <= context:
        what = f"{type(source).__name__}.max_length is {source.max_length}, and SGLang keeps {SGLANG_RESERVED} tokens "
        what += f"of its context of {context}"
        yield problem_of(source, "max_length", "server-context", what, f"set max_length={most} or less")


def _gpus_of(server: SGLang) -> int:
    return server.tp or len(server.gpus or ()) or 1


def server_splits_heads(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    """As SGLang asks: heads over its GPUs without a rest; key-value heads too, or each on several GPUs."""
    heads, kv_heads = facts.geometry.num_heads, facts.geometry.num_kv_heads
    for server in facts.servers:
        if not isinstance(server, SGLang) or server.url is not None:
            continue
        gpus = _gpus_of(server)
        kv = not facts.geometry.latent and kv_heads % gpus and gpus % kv_heads
        if heads % gpus or kv:
            what = f"SGLang splits {heads} heads with {kv_heads} of keys and values over {gpus} GPUs: a rest is left"
            fits = (n for n in range(1, gpus) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0))
            fix = f"use {max(fits, default=1)} GPUs of a server, and several servers for the others"
            yield problem_of(server, "gpus" if server.tp is None else "tp", "server-heads", what, fix)


def server_holds_weights(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    """What SGLang may take of a GPU is known where `mem_fraction` is given."""
    for server in facts.servers:
        if not isinstance(server, SGLang) or server.mem_fraction is None or not facts.device.memory_bytes:
            continue
        gpus, allowed = _gpus_of(server), server.mem_fraction * facts.device.memory_bytes
        weights = parameter_count(facts.geometry) * DTYPE_BYTES[facts.target_dtype] / gpus
        if weights >= allowed:
            where = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
            what = f"SGLang.mem_fraction is {server.mem_fraction:g}, {allowed / GIB:.3g} GiB of {facts.device.name}, "
            what += f"and the target's weights take {weights / GIB:.3g} GiB on {where}"
            fix = "raise mem_fraction, or split the target over more GPUs: SGLang(gpus=[...])"
            yield problem_of(server, "mem_fraction", "server-memory", what, fix)


def retained_features_end(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if not facts.apart or facts.disaggregated.retain != "features":
        return
    every = next((c.every for c in facts.recipe.outputs if isinstance(c, Checkpoint)), 0)
    if not every and facts.train.max_steps is None:
        what = "Disaggregated.retain is 'features', and no checkpoint covers them before the end of the run"
        fix = "write Checkpoint(every=...) into outputs, or retain='prompts'"
        yield problem_of(facts.disaggregated, "retain", "retain-without-end", what, fix)


def _two_steps_of_packs_fit(facts: Facts) -> Iterator[Problem]:
    store, packs = facts.disaggregated.store, facts.train.accumulation * facts.ranks
    need = 2 * packs * facts.micro_tokens * bytes_per_document(facts) // facts.max_length
    if need > (store.max_gib or 0) * GIB:
        what = f"{type(store).__name__}.max_gib is {store.max_gib:g}, and the features of two optimizer steps, "
        what += f"{2 * packs} packs of {facts.micro_tokens} tokens, take up to {need / GIB:.3g} GiB"
        fix = f"set max_gib={need / GIB:.3g} or more, or a smaller pack_tokens"
        yield problem_of(store, "max_gib", "pool-too-small", what, fix)


def pool_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    if not facts.apart or facts.disaggregated.store.max_gib is None:
        return
    topology = facts.disaggregated
    high = topology.high_watermark or least_documents(facts)
    kept = retained_documents(facts) if topology.retain == "features" else 0
    if high is None:
        yield from _two_steps_of_packs_fit(facts)
    if high is None or kept is None:
        return
    need = (high + kept) * bytes_per_document(facts)
    if need > (topology.store.max_gib or 0) * GIB:
        what = f"{type(topology.store).__name__}.max_gib is {topology.store.max_gib:g}, and {high + kept} documents of "
        what += f"features take up to {need / GIB:.3g} GiB"
        what += f": {high} at the high watermark" + (f" and {kept} until a checkpoint" if kept else "")
        fix = f"set max_gib={need / GIB:.3g} or more"
        fix += ", checkpoint more often, or write retain='prompts'" if kept else ", or a smaller batch_size"
        yield problem_of(topology.store, "max_gib", "pool-too-small", what, fix)
