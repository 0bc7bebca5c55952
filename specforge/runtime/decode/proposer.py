"""In: what the target has just verified. Out: the draft tokens to verify next.

Legend: B rows, S verified columns, K draft tokens, C captured width.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import torch

from specforge.runtime.decode.choice import Proposal


@attrs.frozen(eq=False)
class Verified:
    """Newly verified positions: column i of row b counts where i < `counts_B[b]`, the rest is noise.

    `aux_BSC`: the target's captured layers at `positions_BS`; `next_BS`: the token that follows each position.
    """

    aux_BSC: torch.Tensor
    next_BS: torch.Tensor
    positions_BS: torch.Tensor
    counts_B: torch.Tensor


class Proposer(Protocol):
    """Proposes K tokens per row. It sees every verified position of its rows exactly once, in order."""

    @property
    def draft_tokens(self) -> int: ...

    def propose(self, verified: Verified) -> Proposal:
        """Guesses for the tokens after the last `next_BS` of each row, as target ids."""
        ...
