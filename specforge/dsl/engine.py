"""In: how the target is run. Out: `Transformers`, the engine inside the trainer's process."""

from __future__ import annotations

from specforge.dsl.node import field, node
from specforge.dsl.rule import choice, whole


@node
class Transformers:
    """Capture with transformers. `dtype` of the target's compute, None: float32 on a CPU, bfloat16 on a GPU.

    `batch_size`: documents of one forward; None: the documents of a micro-step, on a GPU as many as fill it. Where it
    holds several optimizer steps, their documents are captured together.
    """

    dtype: str | None = field(choice("float32", "bfloat16", "float16"), default=None, optional=True)
    batch_size: int | None = field(whole(), default=None, optional=True)
