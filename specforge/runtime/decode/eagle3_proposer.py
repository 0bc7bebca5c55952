"""In: what the target has just verified. Out: a chain of draft tokens from an EAGLE3 draft with its own KV cache.

Legend: B rows, S verified columns, K draft tokens, C captured width, H draft hidden, T draft cache entries.
"""

from __future__ import annotations

import torch

from specforge.runtime.decode.proposer import Verified
from specforge.runtime.decode.visibility import Visibility
from specforge.runtime.draft.eagle3 import DraftCache, Eagle3Draft


class Eagle3Proposer:
    """A chain of K EAGLE3 steps per round (EAGLE-3, arXiv 2503.01840, in the positions of training's unroll).

    Step 0 feeds (captured state at t, token t+1) at RoPE position t for every newly verified t; step k feeds the
    previous step's output and the token just drafted at position t+k. A query sees the step-0 entries up to t and
    its own chain. Chain entries are hidden after the round: the next round feeds those positions with real states.
    """

    def __init__(self, draft: Eagle3Draft, draft_tokens: int, rows: int) -> None:
        self.draft = draft
        self.draft_tokens = draft_tokens
        self.cache = DraftCache()
        self.visibility = Visibility(rows, draft.d2t.device)
        self.last_position = draft.settings.max_position_embeddings - 1

    def propose(self, verified: Verified) -> torch.Tensor:
        rows, size = verified.next_BS.shape
        fused_BSH = self.draft.fuse(verified.aux_BSC)
        visible_BST = self.visibility.block(size)
        out_BSH = self.draft.extend(fused_BSH, verified.next_BS, verified.positions_BS, self.cache, visible_BST)
        columns_S = torch.arange(size, device=out_BSH.device)
        self.visibility.append(columns_S < verified.counts_B[:, None])

        last_B1 = verified.counts_B[:, None] - 1
        state_B1H = out_BSH.gather(1, last_B1[:, :, None].expand(rows, 1, out_BSH.shape[2]))
        position_B1 = verified.positions_BS.gather(1, last_B1)
        drafts = [self._choose(state_B1H)]
        for step in range(1, self.draft_tokens):
            # A position past the model's last one is only reached for tokens that are cut from the output.
            at_B1 = (position_B1 + step).clamp(max=self.last_position)
            visible_B1T = self.visibility.suffix(step)
            state_B1H = self.draft.extend(state_B1H, drafts[-1], at_B1, self.cache, visible_B1T)
            drafts.append(self._choose(state_B1H))
        self.visibility.append(torch.zeros(rows, self.draft_tokens - 1, dtype=torch.bool, device=out_BSH.device))
        return torch.cat(drafts, dim=1)

    def _choose(self, state_B1H: torch.Tensor) -> torch.Tensor:
        return self.draft.to_target_ids(self.draft.logits(state_B1H).argmax(dim=-1))
