"""In: what a capture policy or a strategy names. Out: `Feature`, the type of an edge of the graph and of the plan."""

from __future__ import annotations

import attrs

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}


@attrs.frozen
class Feature:
    """What travels along an edge: one tensor per document, token-major.

    `name`: "tokens", "aux", "last_hidden", "draft".
    `width`: elements per token; the tensor of a document of T tokens is [T, width] ([T] where width is 1).
    `dtype`: a key of `DTYPE_BYTES`.
    `layers`: target layer ids whose outputs are concatenated along the width, in this order; layer id i means
    the output of decoder layer i (0-based). Empty where no layer is meant.
    `norm`: "pre" or "post" the target's final norm; "" where it does not apply.
    `shifted`: whether row t already holds what belongs to token t + 1. Captures are never shifted.
    """

    name: str
    width: int
    dtype: str
    layers: tuple[int, ...] = ()
    norm: str = ""
    shifted: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Exact bytes one token of this feature takes."""
        return self.width * DTYPE_BYTES[self.dtype]
