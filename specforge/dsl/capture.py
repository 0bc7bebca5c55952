"""In: a source and a target. Out: `Capture`, the hidden states of the target over the source, and its `Policy`."""

from __future__ import annotations

from specforge.dsl.feature import DTYPE_BYTES
from specforge.dsl.node import field, node
from specforge.dsl.rule import choice, flag, layer_ids
from specforge.dsl.rule import node as a_node
from specforge.dsl.source import SOURCES, Source
from specforge.dsl.target import Target

FLOATS = tuple(name for name in DTYPE_BYTES if "float" in name)


@node
class Policy:
    """WHAT is captured. How and where stands in the topology.

    `layers`: layer ids whose outputs are captured, id i being the output of decoder layer i; None: what the strategy
    needs of this target. `last_hidden`: the hidden state after the final norm, the input of the head.
    `dtype`: of the stored features; None: the dtype the target computes in. `strategy`: whose layers are meant where
    none are named and nothing is trained; `Eagle3.policy(target)` gives it.
    """

    layers: tuple[int, ...] | None = field(layer_ids(), default=None, optional=True)
    last_hidden: bool = field(flag(), default=True)
    dtype: str | None = field(choice(*FLOATS), default=None, optional=True)
    strategy: str | None = field(choice("eagle3"), default=None, optional=True)


@node
class Capture:
    """The target's hidden states over the source's documents. Without a policy: what the consumers need."""

    source: Source = field(a_node(*SOURCES, why='a source of documents: Conversations("chats.jsonl")'))
    target: Target = field(a_node(Target, why='the target model: Target("Qwen/Qwen3-8B")'))
    policy: Policy | None = field(a_node(Policy), default=None, optional=True)
