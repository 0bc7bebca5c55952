"""In: how often each target id is supervised. Out: `VocabReport`: what a draft vocabulary covers, as text.

Legend: V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from specforge.runtime.data.vocab_map import vocab_map

SIZES = (1000, 2000, 4000, 8000, 16000, 32000)
SHOWN_IDS = 10


@attrs.frozen
class VocabReport:
    """The draft vocabulary of `size` ids that training would make of a source.

    `tokens`: those counted, where the loss mask is set (a document's last may be one of them, and is no supervised
    row), `distinct` ids among them. `coverage`: share of the tokens whose id is kept.
    `missed`: the most frequent ids that are not kept, with their counts. `by_size`: the coverage at other sizes.
    """

    size: int
    vocab_size: int
    tokens: int
    distinct: int
    coverage: float
    missed: tuple[tuple[int, int], ...]
    by_size: tuple[tuple[int, float], ...]

    def text(self, name: Callable[[int], str]) -> str:
        """Lines for a terminal; `name` says what an id stands for ("" where it cannot be told)."""
        lines = [
            f"draft vocabulary: {self.size:,} of {self.vocab_size:,} ids, {self.coverage:.2%} of the replies' tokens",
            f"  {self.tokens:,} tokens in replies, {self.distinct:,} distinct ids",
        ]
        if self.missed:
            lines.append("most frequent ids not covered:")
            lines += [f"  {id:>8} {count:>8,}x {name(id)}".rstrip() for id, count in self.missed]
        if self.by_size:
            lines.append("coverage by size:")
            lines += [f"  {size:>8,} {coverage:>8.2%}" for size, coverage in self.by_size]
        return "\n".join(lines)


def vocab_report(counts_V: np.ndarray, size: int) -> VocabReport:
    """Report on the map that `vocab_map(counts_V, size)` makes. Raises what it raises."""
    made = vocab_map(counts_V, size)
    left_V = np.where(made.t2d, 0, counts_V)
    most = np.argsort(-left_V, kind="stable")[:SHOWN_IDS]
    return VocabReport(
        size=size,
        vocab_size=len(counts_V),
        tokens=int(counts_V.sum()),
        distinct=int(np.count_nonzero(counts_V)),
        coverage=made.coverage,
        missed=tuple((int(i), int(left_V[i])) for i in most if left_V[i]),
        by_size=tuple((n, vocab_map(counts_V, n).coverage) for n in SIZES if n <= len(counts_V)),
    )
