"""In: a training node and its target's geometry. Out: problems of the draft's sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specforge.compiler.draft_heads import draft_heads
from specforge.compiler.facts import Facts
from specforge.compiler.graph import Graph, Node
from specforge.compiler.strategy import knowledge
from specforge.dsl.node import problem_of
from specforge.dsl.problem import Problem

MAPS = ("d2t", "t2d")
# what specforge.runtime.draft.layers computes; a test compares
ROPE_TYPES = {"default", "mrope", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}


def draft_vocabulary_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    vocabulary, config = facts.world.geometry(target).vocab_size, facts.world.draft(draft)
    name, given = "vocab_size", draft.vocab_size
    if given is None and config is not None:
        name, given = "config", config.draft_vocab_size
    if given is not None and given > vocabulary:
        value = given if name == "vocab_size" else f"{draft.config!r}, with draft_vocab_size={given}"
        what = f"Draft.{name} is {value}, and the vocabulary of {target.name} has {vocabulary} tokens"
        fix = f"set vocab_size={vocabulary} or less; the most frequent supervised tokens are kept"
        yield problem_of(draft, name, "draft-vocabulary", what, fix)


def draft_config_fits(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    config = facts.world.draft(draft)
    if config is None:
        return
    known, options, policy = knowledge(node.spec.strategy), node.spec.strategy, node.spec.features.policy
    geometry, own = facts.world.geometry(target), config.geometry
    layers = policy.layers if policy is not None and policy.layers is not None else known.layers(geometry)
    pairs: list[tuple[str, Any, Any, str]] = [
        ("architectures", config.architecture, known.architecture, "this strategy's is"),
        ("num_hidden_layers", own.num_layers, 1, "this strategy's draft has"),
        ("hidden_size", own.hidden_size, geometry.hidden_size, "the target's is"),
        ("vocab_size", own.vocab_size, geometry.vocab_size, "the target's is"),
        ("eagle_aux_hidden_state_layer_ids", config.aux_layers, layers, "captured are"),
        ("fc_norm", config.fc_norm, options.fc_norm, "the strategy's is"),
        ("norm_output", config.norm_output, options.norm_output, "the strategy's is"),
        ("tie_word_embeddings", own.tied_embeddings, False, "a draft's is"),
    ]
    wrong = [
        f"{key} is {_text(got)}, {whose} {_text(want)}" for key, got, want, whose in pairs if got not in (None, want)
    ]
    wrong += [f"{key} is true, a draft has no bias" for key in config.biased]
    if wrong:
        what = f"Draft.config is {draft.config!r}, which does not go with the recipe: {'; '.join(wrong)}"
        fix = "use the config of a draft for this target; Eagle3 and its policy set layers, fc_norm and norm_output"
        yield problem_of(draft, "config", "draft-config-fit", what, fix)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def draft_rope_known(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    config = facts.world.draft(draft)
    rope = (facts.world.geometry(target) if config is None else config.geometry).rope
    part, kind = rope.get("partial_rotary_factor", 1.0), rope["rope_type"]
    wrong = f"partial_rotary_factor={part}, and a draft rotates whole heads" if part != 1.0 else ""
    if not wrong and kind not in ROPE_TYPES:
        wrong = f"rope_type={kind!r}; a draft knows {', '.join(sorted(ROPE_TYPES))}"
    if wrong and config is None:
        what = f"the draft's rotary embedding would be that of {target.name}, with {wrong}"
        fix = "give the draft one of its own: Draft(config=...), a config.json with rope_theta"
        yield problem_of(target, "name", "draft-rope", what, fix)
    elif wrong:
        what = f"Draft.config is {draft.config!r}, with {wrong}"
        yield problem_of(draft, "config", "draft-rope", what, "remove it from the file, or choose one of these types")


def draft_weights_fit(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft = node.spec.draft
    if draft.weights is None or draft.weights not in facts.world.weights:
        return
    found = facts.world.weights[draft.weights]
    known, policy = knowledge(node.spec.strategy), node.spec.features.policy
    layers = policy.layers if policy is not None and policy.layers is not None else known.layers(facts.geometry)
    wanted = {p.name: p.shape for p in known.draft(facts, layers).parameters if p.trainable or p.name in MAPS}
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    wrong += [
        f"{name} has {list(found[name])}, this draft {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        what = f"Draft.weights is {draft.weights!r}, of another draft: {'; '.join(wrong)}"
        yield problem_of(draft, "weights", "draft-weights-fit", what, "give the sizes of the draft that wrote it")


def draft_heads_divide(node: Node, graph: Graph, facts: Facts) -> Iterator[Problem]:
    draft, target = node.spec.draft, node.spec.features.target
    config = facts.world.draft(draft)
    derived = draft_heads(facts.world.geometry(target), None if config is None else config.geometry)
    given = draft.num_heads, draft.num_kv_heads
    heads, kv_heads = given[0] or derived.num_heads, given[1] or derived.num_kv_heads
    if None in given and heads % kv_heads:
        whose = "the target's" if config is None else "the config's"
        if given == (None, None):
            what = f"Draft.config is {draft.config!r}: num_attention_heads={heads} and num_key_value_heads={kv_heads}"
            fix = "key-value heads divide heads: change one of them in the file"
            yield problem_of(draft, "config", "draft-heads", what, fix)
            return
        name, other = ("num_heads", "num_kv_heads") if given[0] else ("num_kv_heads", "num_heads")
        what = f"Draft.{name} is {getattr(draft, name)}, and {other}={kv_heads if given[0] else heads}, {whose},"
        what += " does not go with it: key-value heads divide heads"
        yield problem_of(draft, name, "draft-heads", what, f"give both: {other}=... as well")
