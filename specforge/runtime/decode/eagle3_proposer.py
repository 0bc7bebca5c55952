"""In: what the target has just verified. Out: a chain of draft tokens from an EAGLE3 draft with its own KV cache.

Legend: B rows, S verified columns, K draft tokens, C captured width, H draft hidden, T draft cache entries,
d draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch

from specforge.runtime.decode.choice import Proposal, Sampled
from specforge.runtime.decode.proposer import Verified
from specforge.runtime.decode.visibility import Visibility
from specforge.runtime.draft.eagle3 import DraftCache, Eagle3Draft


class Eagle3Proposer:
    """A chain of K EAGLE3 steps per round (EAGLE-3, arXiv 2503.01840, in the positions of training's unroll).

    Step 0 feeds (captured state at t, token t+1) at RoPE position t for every newly verified t; step k feeds the
    previous step's output and the token just drafted at position t+k. A query sees the step-0 entries up to t and
    its own chain. Chain entries are hidden after the round: the next round feeds those positions with real states.
    `sampled`: draft tokens are drawn at its temperature from the draft's distribution, else they are its greatest.
    """

    def __init__(self, draft: Eagle3Draft, draft_tokens: int, rows: int, sampled: Sampled | None = None) -> None:
        self.draft, self.sampled = draft, sampled
        self.draft_tokens = draft_tokens
        self.kept_ids_d = draft.kept_ids_d
        self.cache = DraftCache()
        self.visibility = Visibility(rows, draft.d2t.device)
        self.last_position = draft.settings.max_position_embeddings - 1

    def propose(self, verified: Verified) -> Proposal:
        rows, size = verified.next_BS.shape
        fused_BSH = self.draft.fuse(verified.aux_BSC)
        visible_BST = self.visibility.block(size)
        out_BSH = self.draft.extend(fused_BSH, verified.next_BS, verified.positions_BS, self.cache, visible_BST)
        columns_S = torch.arange(size, device=out_BSH.device)
        self.visibility.append(columns_S < verified.counts_B[:, None])

        last_B1 = verified.counts_B[:, None] - 1
        state_B1H = out_BSH.gather(1, last_B1[:, :, None].expand(rows, 1, out_BSH.shape[2]))
        position_B1 = verified.positions_BS.gather(1, last_B1)
        chosen = [self._choose(state_B1H)]
        for step in range(1, self.draft_tokens):
            # A position past the model's last one is only reached for tokens that are cut from the output.
            at_B1 = (position_B1 + step).clamp(max=self.last_position)
            visible_B1T = self.visibility.suffix(step)
            state_B1H = self.draft.extend(state_B1H, chosen[-1].tokens_BK, at_B1, self.cache, visible_B1T)
            chosen.append(self._choose(state_B1H))
        self.visibility.append(torch.zeros(rows, self.draft_tokens - 1, dtype=torch.bool, device=out_BSH.device))
        drawn_from = [one.probabilities_BKV for one in chosen if one.probabilities_BKV is not None]
        tokens_BK = torch.cat([one.tokens_BK for one in chosen], dim=1)
        return Proposal(tokens_BK, torch.cat(drawn_from, dim=1) if drawn_from else None)

    def _choose(self, state_B1H: torch.Tensor) -> Proposal:
        logits_B1d = self.draft.logits(state_B1H)
        if self.sampled is None:
            return Proposal(self.draft.to_target_ids(logits_B1d.argmax(dim=-1)))
        q_B1d = self.sampled.sampling.probabilities(logits_B1d)
        drawn_B1 = self.sampled.draw(q_B1d[:, 0])[:, None]
        q_B1V = q_B1d.new_zeros(*q_B1d.shape[:2], self.draft.t2d.shape[0]).index_copy_(2, self.kept_ids_d, q_B1d)
        return Proposal(self.draft.to_target_ids(drawn_B1), q_B1V)
