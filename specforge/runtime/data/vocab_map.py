"""In: documents and the size of a draft vocabulary. Out: `VocabMap`: which target ids the draft has, as d2t and t2d.

Legend: V target vocabulary, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from specforge.runtime.data.pack import Document


@attrs.frozen(eq=False)
class VocabMap:
    """`d2t` int64 [D] are offsets: target id = d + d2t[d], ascending. `t2d` bool [V] is True for kept target ids.

    `coverage`: share of the counted supervised tokens whose id is kept.
    """

    d2t: np.ndarray
    t2d: np.ndarray
    coverage: float


def count(documents: Iterable[Document], vocab_size: int) -> np.ndarray:
    """int64 [V]: how often each id stands at a supervised place (input ids where loss_mask is set, not shifted)."""
    counts_V = np.zeros(vocab_size, np.int64)
    for document in documents:
        np.add.at(counts_V, document.tokens[document.loss_mask], 1)
    return counts_V


def vocab_map(counts_V: np.ndarray, draft_vocab_size: int) -> VocabMap:
    """Keep the `draft_vocab_size` most frequent ids; ties, and ids never seen, by the smaller id.

    D == V gives the identity. Raises ValueError where D is not in [1, V].
    """
    vocab_size = len(counts_V)
    if not 1 <= draft_vocab_size <= vocab_size:
        raise ValueError(
            f"a draft vocabulary of {draft_vocab_size} does not fit a target vocabulary of {vocab_size}; "
            f"set Draft(vocab_size=...) to at most {vocab_size}"
        )
    kept = np.sort(np.argsort(-counts_V, kind="stable")[:draft_vocab_size])
    t2d = np.zeros(vocab_size, np.bool_)
    t2d[kept] = True
    total = int(counts_V.sum())
    made = VocabMap(
        d2t=kept.astype(np.int64) - np.arange(draft_vocab_size, dtype=np.int64),
        t2d=t2d,
        coverage=int(counts_V[kept].sum()) / total if total else 0.0,
    )
    check(made.d2t, made.t2d)
    return made


def check(d2t: np.ndarray, t2d: np.ndarray, draft_vocab_size: int | None = None, vocab_size: int | None = None) -> None:
    """Raise ValueError unless d2t and t2d are one map (nonzero(t2d) == d2t + arange), of the sizes given."""
    for name, have, want in (("d2t", len(d2t), draft_vocab_size), ("t2d", len(t2d), vocab_size)):
        if want is not None and have != want:
            raise ValueError(
                f"the vocabulary map is another one: {name} has {have} entries, this plan needs {want}; "
                "start a new run, or give the checkpoint that belongs to this plan"
            )
    kept = np.flatnonzero(t2d)
    if len(kept) != len(d2t) or not np.array_equal(kept, d2t + np.arange(len(d2t))):
        raise ValueError(
            f"d2t ({len(d2t)} entries) and t2d ({len(kept)} kept) are not one map: target id must be d + d2t[d], "
            "ascending; d2t holds offsets, not target ids"
        )
