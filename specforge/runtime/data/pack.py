"""In: token ids and loss masks. Out: `Document` and `Pack`, the host side of a micro-step. No torch here."""

from __future__ import annotations

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Document:
    """A tokenised row. `index`: its place in the source; `tokens` int32 [T]; `loss_mask` bool [T], True: loss."""

    index: int
    tokens: np.ndarray
    loss_mask: np.ndarray

    @property
    def supervised(self) -> int:
        """Rows that carry loss: the mask without the document's last row, which has no next state to learn from."""
        return int(self.loss_mask[:-1].sum())


@attrs.frozen(eq=False)
class Pack:
    """The documents of one micro-step of one rank, in order."""

    documents: tuple[Document, ...]

    @property
    def rows(self) -> int:
        return sum(len(d.tokens) for d in self.documents)

    @property
    def padded_rows(self) -> int:
        """Rows of a [documents, longest] batch of them."""
        return len(self.documents) * max(self.lengths, default=0)

    @property
    def supervised(self) -> int:
        return sum(d.supervised for d in self.documents)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(d.tokens) for d in self.documents)
