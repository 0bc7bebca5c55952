"""In: how the target is run. Out: `Transformers`, the engine inside the trainer's process."""

from __future__ import annotations

from specforge.dsl.node import field, node
from specforge.dsl.rule import choice, flag, whole


@node
class Transformers:
    """Capture with transformers. `dtype` of the target's compute, None: float32 on a CPU, bfloat16 on a GPU.

    `batch_size`: documents of one forward; None: the documents of a micro-step, on a GPU as many as fill it. Where it
    holds several optimizer steps, their documents are captured together. `packed`: documents lie end to end in a
    forward, where the target's attention keeps them apart (the run tries that), else they are padded, those of similar
    length together. None: packed on a CPU, where padding costs most.
    """

    dtype: str | None = field(choice("float32", "bfloat16", "float16"), default=None, optional=True)
    batch_size: int | None = field(whole(), default=None, optional=True)
    packed: bool | None = field(flag(), default=None, optional=True)
