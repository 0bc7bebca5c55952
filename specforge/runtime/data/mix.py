"""In: prepared sources, a weight for each, a seed. Out: `mix`, one `Prepared` that holds each source so often."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.report import Report
from specforge.settings import SourceSettings


def mix(source: SourceSettings, parts: Sequence[Prepared]) -> Prepared:
    """The documents of an epoch, part after part: of weight 2.5 every document twice and a seeded half once more.

    The same seed, weights and documents give the same mix; a part's choice does not depend on the other parts. A
    part is never left out: of a small weight at least one document is taken.
    """
    weighted = zip(parts, source.weights, strict=True)
    taken = [_taken(len(p.documents), weight, (source.seed, at)) for at, (p, weight) in enumerate(weighted)]
    documents = [part.documents[i] for part, chosen in zip(parts, taken) for i in chosen]
    return Prepared(
        documents=tuple(attrs.evolve(document, index=i) for i, document in enumerate(documents)),
        rows=tuple(part.rows[i] for part, chosen in zip(parts, taken) for i in chosen),
        report=Report(
            path=source.path,
            rows=sum(part.report.rows for part in parts),
            kept=len(documents),
            dropped=(),
            tokens=sum(len(d.tokens) for d in documents),
            supervised=sum(d.supervised for d in documents),
            truncated=0,
            parts=tuple(part.report for part in parts),
        ),
        parts=tuple(at for at, chosen in enumerate(taken) for _ in chosen),
    )


def _taken(documents: int, weight: float, seed: tuple[int, int]) -> list[int]:
    whole = int(weight)
    more = round((weight - whole) * documents)
    more = max(more, 1) if whole == 0 else more
    chosen = np.random.default_rng(seed).permutation(documents)[:more]
    return list(range(documents)) * whole + sorted(chosen.tolist())
