"""In: sizes. Out: `Draft`, the small model that is trained; what is not given follows from the target."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, even, text, whole


def _heads_divide(draft: Any) -> tuple[str, Fault] | None:
    heads, kv_heads = draft.num_heads, draft.num_kv_heads
    if heads is not None and kv_heads is not None and heads % kv_heads:
        fix = "choose a number of key-value heads that divides the number of heads"
        return "num_kv_heads", Fault(f"is {kv_heads}, and it must divide num_heads={heads}", fix)
    return None


@node
class Draft:
    """The draft model. Its hidden size is the target's, whose embedding it shares, frozen.

    `vocab_size`: tokens the draft can propose; None: the smaller of 32000 and the target's vocabulary. The ids are the
    most frequent supervised ones. The other sizes are the target's unless given.
    `config`: the config.json of a draft (relative to the recipe), of an export or as SGLang reads it: what is not given
    here is the file's: sizes, activation, norm epsilon, rotary embedding.
    `weights`: a safetensors file to start from, of an export or a checkpoint of this draft's sizes (relative to the
    recipe): its weights, with a fresh optimizer, and its vocabulary map. A run that goes on reads its checkpoint.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("heads-divide", "a draft's key-value heads divide its heads", _heads_divide),
    )

    vocab_size: int | None = field(whole(), default=None, optional=True)
    intermediate_size: int | None = field(whole(), default=None, optional=True)
    num_heads: int | None = field(whole(), default=None, optional=True)
    num_kv_heads: int | None = field(whole(), default=None, optional=True)
    head_dim: int | None = field(even(), default=None, optional=True)
    config: str | None = field(text("the path of a config.json"), default=None, optional=True)
    weights: str | None = field(text("the path of a safetensors file"), default=None, optional=True)
