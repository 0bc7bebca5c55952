"""In: the target's logits over drafts. Out: which drafts stand and which token follows: greedily, or by sampling.

Legend: B rows, K draft tokens, S = K+1 verified columns, V target vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import torch
from torch.nn import functional


@attrs.frozen(eq=False)
class Proposal:
    """K draft tokens per row, int64 [B, K], target ids.

    `probabilities_BKV`: the distribution that each was drawn from, float32; None for drafts that were not drawn.
    """

    tokens_BK: torch.Tensor
    probabilities_BKV: torch.Tensor | None = None


@attrs.frozen(eq=False)
class Verdict:
    """The first `accepted_B` drafts stand. `tokens_BS`: they, then the target's own token; what follows is noise.

    `gaps_BS`: the gap between the two greatest logits, in units in the last place (ulps) of the logits' dtype.
    """

    tokens_BS: torch.Tensor
    gaps_BS: torch.Tensor
    accepted_B: torch.Tensor


class Choice(Protocol):
    """How the target's next token is chosen."""

    def verify(self, logits_BSV: torch.Tensor, proposal: Proposal) -> Verdict:
        """Judge K drafts by the K+1 distributions around them; K may be 0."""
        ...


class Greedy:
    """The greatest logit: a draft stands where it is that token, so the output is plain greedy decoding's."""

    def verify(self, logits_BSV: torch.Tensor, proposal: Proposal) -> Verdict:
        best_BS = logits_BSV.argmax(dim=-1)
        agrees_BK = proposal.tokens_BK == best_BS[:, :-1]
        return Verdict(best_BS, _gaps(logits_BSV, best_BS), agrees_BK.long().cumprod(dim=1).sum(dim=1))


@attrs.frozen
class Sampling:
    """Temperature over the logits, then the smallest set of tokens with probability `top_p` together."""

    temperature: float
    top_p: float = 1.0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature is {self.temperature:g}; sampling needs one above 0, and 0 is greedy")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p:g}; it must be above 0 and at most 1")

    def probabilities(self, logits_XV: torch.Tensor) -> torch.Tensor:
        """float32 or wider, [..., V]: what is drawn from."""
        wide = torch.promote_types(logits_XV.dtype, torch.float32)
        shares_XV = torch.softmax(logits_XV.to(wide) / self.temperature, dim=-1)
        if self.top_p == 1.0:
            return shares_XV
        sorted_XV, order_XV = shares_XV.sort(dim=-1, descending=True, stable=True)
        before_XV = sorted_XV.cumsum(dim=-1) - sorted_XV
        kept_XV = torch.zeros_like(shares_XV).scatter(-1, order_XV, sorted_XV * (before_XV < self.top_p))
        return kept_XV / kept_XV.sum(dim=-1, keepdim=True)


class Sampled:
    """Lossless speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    Draft x drawn from q stands with probability min(1, p(x)/q(x)); the first that does not is replaced by a draw from
    max(p - q, 0) normalised, and after K that stand comes a draw from p. So every token is distributed as the
    target's own, whatever q is. Drafts that were not drawn (no probabilities) have q = 1 at the draft.
    """

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self.sampling = sampling
        self.generator = torch.Generator(device).manual_seed(sampling.seed)

    def draw(self, probabilities_BV: torch.Tensor) -> torch.Tensor:
        """One id per row, int64 [B]."""
        return torch.multinomial(probabilities_BV, 1, generator=self.generator)[:, 0]

    def verify(self, logits_BSV: torch.Tensor, proposal: Proposal) -> Verdict:
        p_BSV, drafts_BK = self.sampling.probabilities(logits_BSV), proposal.tokens_BK
        q_BKV = proposal.probabilities_BKV
        if q_BKV is None:
            q_BKV = torch.zeros_like(p_BSV[:, :-1]).scatter_(-1, drafts_BK[..., None], 1.0)
        p_at_BK, q_at_BK = (x.gather(-1, drafts_BK[..., None])[..., 0] for x in (p_BSV[:, :-1], q_BKV))
        chance_BK = torch.rand(p_at_BK.shape, dtype=p_at_BK.dtype, device=p_at_BK.device, generator=self.generator)
        stands_BK = chance_BK * q_at_BK < p_at_BK
        accepted_B = stands_BK.long().cumprod(dim=1).sum(dim=1)
        # where all stand there is no draft to subtract
        q_BSV = torch.cat([q_BKV, torch.zeros_like(p_BSV[:, :1])], dim=1)
        at_B11 = accepted_B[:, None, None].expand(-1, 1, p_BSV.shape[-1])
        p_BV, q_BV = (x.gather(1, at_B11)[:, 0] for x in (p_BSV, q_BSV))
        rest_BV = (p_BV - q_BV).clamp(min=0.0)
        # p = q leaves nothing, and is never refused but by rounding
        rest_BV = torch.where(rest_BV.sum(-1, keepdim=True) > 0, rest_BV, p_BV)
        tokens_BS = functional.pad(drafts_BK, (0, 1)).scatter(1, accepted_B[:, None], self.draw(rest_BV)[:, None])
        return Verdict(tokens_BS, _gaps(logits_BSV, logits_BSV.argmax(dim=-1)), accepted_B)


def _gaps(logits_BSV: torch.Tensor, best_BS: torch.Tensor) -> torch.Tensor:
    top_BS1 = logits_BSV.gather(-1, best_BS[..., None])
    second_BS = logits_BSV.scatter(-1, best_BS[..., None], float("-inf")).amax(dim=-1).float()
    top_BS = top_BS1[..., 0].float()
    exponent_BS = torch.frexp(top_BS.abs().clamp(min=torch.finfo(torch.float32).tiny)).exponent - 1
    ulp_BS = torch.ldexp(torch.full_like(top_BS, torch.finfo(logits_BSV.dtype).eps), exponent_BS)
    return (top_BS - second_BS) / ulp_BS
