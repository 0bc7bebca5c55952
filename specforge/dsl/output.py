"""In: how often and in which form. Out: what a run leaves: `Evaluate`, `Checkpoint`, `Export`."""

from __future__ import annotations

from specforge.dsl.node import field, node
from specforge.dsl.rule import choice, whole
from specforge.dsl.rule import node as a_node
from specforge.dsl.source import SOURCES, Source


@node
class Evaluate:
    """Measure the draft on a held-out source every `every` optimizer steps and at the end, teacher-forced.

    The best checkpoint is the one with the highest simulated acceptance length. `batch_size`: documents at a time.
    """

    source: Source = field(a_node(*SOURCES, why='a held-out source: Conversations("heldout.jsonl")'))
    every: int = field(whole(), default=500)
    batch_size: int = field(whole(), default=8)


@node
class Checkpoint:
    """Save every `every` optimizer steps (0: at the end only); keep the newest `keep` and the best."""

    every: int = field(whole(0), default=0)
    keep: int = field(whole(), default=2)


@node
class Export:
    """Write the trained draft as SGLang ("sglang") or transformers ("hf") loads it, at the end of the run."""

    format: str = field(choice("hf", "sglang"))


Output = Checkpoint | Export
