"""In: a built graph and the facts. Out: every problem between nodes. `CHECKS` is read top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from specforge.compiler.checks.capture import capture_layers_exist, capture_length_fits, capture_needs_tokenizer
from specforge.compiler.checks.draft import (
    draft_config_fits,
    draft_heads_divide,
    draft_rope_known,
    draft_vocabulary_fits,
    draft_weights_fit,
)
from specforge.compiler.checks.output import (
    checkpoint_once,
    evaluation_held_out,
    export_once,
    interval_within_run,
)
from specforge.compiler.checks.recorded import (
    all_recorded_or_none,
    ckpt_is_recorded,
    record_captures,
    record_has_a_policy,
    record_in_one_process,
    recorded_dtype,
    recorded_layers,
    recorded_of_this_target,
)
from specforge.compiler.checks.strategy import strategy_has_its_features, strategy_has_its_layers
from specforge.compiler.checks.topology import (
    device_known,
    dtype_suits_device,
    low_watermark_below_high,
    pool_fits,
    retained_features_end,
    server_holds_documents,
    server_holds_weights,
    server_splits_heads,
    watermark_holds_steps,
)
from specforge.compiler.checks.train import kernels_can_run, pack_holds_a_document
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.dsl.node import ReadBadValue
from specforge.dsl.problem import Problem


@attrs.frozen
class Check:
    """One rule between nodes. `find(node, graph, facts)` is asked for every node of `kinds`."""

    code: str
    meaning: str
    kinds: tuple[str, ...]
    find: Callable[[Any, Graph, Facts], Iterator[Problem]]


CHECKS: tuple[Check, ...] = (
    Check("layer-out-of-range", "captured layers exist in the target", ("capture", "ckpt"), capture_layers_exist),
    Check("length-beyond-context", "documents fit the target's context", ("capture", "ckpt"), capture_length_fits),
    Check("tokenizer-missing", "chats need a target with a tokenizer", ("capture",), capture_needs_tokenizer),
    Check("layer-count", "EAGLE3 reads exactly three layers", ("train", "record"), strategy_has_its_layers),
    Check("feature-missing", "a policy captures what its consumer reads", ("train",), strategy_has_its_features),
    Check("draft-vocabulary", "the draft's vocabulary is part of the target's", ("train",), draft_vocabulary_fits),
    Check("draft-config-fit", "a draft's config is of a draft for this target", ("train",), draft_config_fits),
    Check("draft-rope", "a draft can compute its rotary embedding", ("train",), draft_rope_known),
    Check("draft-weights-fit", "a draft starts from weights of its own sizes", ("train",), draft_weights_fit),
    Check("draft-heads", "a draft's heads go with those it takes from the target", ("train",), draft_heads_divide),
    Check("pack-too-small", "a pack holds the longest document", ("train",), pack_holds_a_document),
    Check("kernels-impossible", "kernels that are asked for can run", ("train",), kernels_can_run),
    Check("device-unknown", "a topology's device is in the device table", ("train", "record"), device_known),
    Check("dtype-device", "a CPU computes in float32 or bfloat16", ("train", "record"), dtype_suits_device),
    Check("watermark-below-step", "two steps and a capture batch may wait", ("train",), watermark_holds_steps),
    Check("watermark-low", "capture goes on below where it stops", ("train",), low_watermark_below_high),
    Check("server-context", "documents fit what SGLang leaves of its context", ("train",), server_holds_documents),
    Check("server-heads", "SGLang splits the target's heads without a rest", ("train",), server_splits_heads),
    Check("server-memory", "the target's weights fit what SGLang may take", ("train",), server_holds_weights),
    Check("retain-without-end", "retained features end with a checkpoint", ("train",), retained_features_end),
    Check("pool-too-small", "a store holds what its watermarks let wait", ("train",), pool_fits),
    Check("not-held-out", "an evaluation reads other rows than training", ("evaluate",), evaluation_held_out),
    Check("interval-beyond-run", "a given interval is not longer than the run", ("evaluate",), interval_within_run),
    Check("recorded-target", "a recording is of the recipe's target", ("recorded",), recorded_of_this_target),
    Check("recorded-layers", "a recording has what its consumer reads", ("recorded",), recorded_layers),
    Check("recorded-dtype", "a recording is in the dtype that is asked for", ("recorded",), recorded_dtype),
    Check("recorded-mixed", "all sources of a run are recordings, or none is", ("evaluate",), all_recorded_or_none),
    Check("record-policy", "a recording's capture says what is captured", ("record",), record_has_a_policy),
    Check("record-recorded", "a recording is made of a capture", ("record",), record_captures),
    Check("ckpt-unrecorded", "files of another capture are recorded before training", ("ckpt",), ckpt_is_recorded),
    Check("record-one-process", "a recording runs in one process", ("record",), record_in_one_process),
    Check("checkpoint-twice", "a recipe has one Checkpoint", ("checkpoint",), checkpoint_once),
    Check("export-twice", "a format is exported once", ("export",), export_once),
)


def check(graph: Graph, facts: Facts) -> list[Problem]:
    """Every problem, in node order. A rule that meets a refused value or a missing geometry is skipped there."""
    found: list[Problem] = []
    for node in graph.nodes:
        for rule in CHECKS:
            if node.kind in rule.kinds:
                found.extend(_ask(rule, node, graph, facts))
    return found


def _ask(rule: Check, node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    try:
        yield from rule.find(node, graph, facts)
    except ReadBadValue:
        return
