"""In: how many drafts each verify accepted. Out: `Acceptance`, the counts and the figures made of them."""

from __future__ import annotations

import attrs


@attrs.frozen
class Acceptance:
    """Counts over the verifies of rows that were still active.

    `histogram[i]`: verifies that accepted exactly i of the K drafts. `generated_tokens`: tokens of the output.
    `cut_tokens`: tokens that verifies gave past an end token or the length limit, not part of the output.
    Always: generated_tokens == prompts + verifies + accepted_tokens - cut_tokens, for every prompt's first token
    comes from the prefill and every verify gives its accepted drafts and one bonus token.
    """

    histogram: tuple[int, ...]
    prompts: int
    generated_tokens: int
    cut_tokens: int

    @property
    def verifies(self) -> int:
        return sum(self.histogram)

    @property
    def accepted_tokens(self) -> int:
        return sum(i * n for i, n in enumerate(self.histogram))

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify, bonus token counted (1 to K+1), nothing cut off; 0 where nothing was verified.

        Equals 1 + sum(per_position).
        """
        return 1 + self.accepted_tokens / self.verifies if self.verifies else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """Entry i: share of all verifies whose first i+1 drafts were all accepted."""
        total = max(self.verifies, 1)
        return tuple(sum(self.histogram[i:]) / total for i in range(1, len(self.histogram)))

    def __add__(self, other: Acceptance) -> Acceptance:
        assert len(self.histogram) == len(other.histogram)
        return Acceptance(
            histogram=tuple(a + b for a, b in zip(self.histogram, other.histogram)),
            prompts=self.prompts + other.prompts,
            generated_tokens=self.generated_tokens + other.generated_tokens,
            cut_tokens=self.cut_tokens + other.cut_tokens,
        )
