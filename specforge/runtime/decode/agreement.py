"""In: plain and speculative output of the same prompts. Out: where they differ, and whether that is a near-tie."""

from __future__ import annotations

import attrs

from specforge.runtime.decode.speculative import Decoded

NEAR_TIE_ULPS = 2.0


@attrs.frozen
class Difference:
    """The first token at which a prompt's outputs differ; what follows it has another context.

    `plain_gap_ulps`, `speculative_gap_ulps`: the gap between the two greatest logits of each decoding there, in
    units in the last place of the logits' dtype; 0 where that output had already ended.
    """

    prompt: int
    position: int
    plain_gap_ulps: float
    speculative_gap_ulps: float
    near_tie: bool


def compare(plain: Decoded, speculative: Decoded, dtype: str) -> tuple[Difference, ...]:
    """One entry per prompt whose outputs differ.

    A near-tie, in a 16-bit dtype: the top-2 gap is under 2 ulps in one of the two decodings and under 4 in the other,
    for each rounds both logits in its own way; there, the order of a sum decides. In float32 nothing is excused.
    """
    found = []
    for row, (one, other) in enumerate(zip(plain.tokens, speculative.tokens)):
        if one == other:
            continue
        pairs = zip(one, other)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        gaps = _gap(plain, row, at), _gap(speculative, row, at)
        both = at < min(len(one), len(other))
        close = min(gaps) < NEAR_TIE_ULPS and max(gaps) < 2 * NEAR_TIE_ULPS
        found.append(Difference(row, at, *gaps, both and close and dtype in ("bfloat16", "float16")))
    return tuple(found)


def _gap(decoded: Decoded, row: int, at: int) -> float:
    gaps = decoded.gaps[row]
    return gaps[at] if at < len(gaps) else 0.0
