"""In: a target, a proposer or none, prompts. Out: output as plain decoding gives it, and how it was accepted.

Plain decoding is the same loop without a proposer (K = 0).
Legend: B rows, P longest prompt, K draft tokens, S = K+1 verified columns, W output width, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import torch

from specforge.runtime.decode.acceptance import Acceptance
from specforge.runtime.decode.cached_target import CachedTarget
from specforge.runtime.decode.choice import Choice, Greedy, Proposal
from specforge.runtime.decode.proposer import Proposer, Verified
from specforge.runtime.target import TargetModel


@attrs.frozen
class Limits:
    """Where output ends: at an end token (kept), at `max_new_tokens`, or where the model's positions end."""

    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    max_positions: int


@attrs.frozen(eq=False)
class Decoded:
    """One batch. `tokens[b]`: output of row b without its prompt. `verifies[b]`: verify forwards of row b.

    `gaps[b][i]`: the gap between the two greatest logits where token i was chosen, in units in the last place
    (ulps) of the logits' dtype at the greater one. `seconds`: wall time with prefill.
    """

    tokens: tuple[tuple[int, ...], ...]
    gaps: tuple[tuple[float, ...], ...]
    verifies: tuple[int, ...]
    acceptance: Acceptance
    seconds: float


GREEDY = Greedy()


class Output:
    """The tokens of B rows as they come, on the device: nothing here waits for it but `finished` and `read`."""

    def __init__(self, limit_B: torch.Tensor, eos_E: torch.Tensor, width: int) -> None:
        rows, device = limit_B.shape[0], limit_B.device
        self.limit_B, self.eos_E = limit_B, eos_E
        self.tokens_BW = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.gaps_BW = torch.zeros(rows, width, dtype=torch.float32, device=device)
        self.count_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.active_B = torch.ones(rows, dtype=torch.bool, device=device)

    def add(self, tokens_BS: torch.Tensor, gaps_BS: torch.Tensor, given_B: torch.Tensor) -> torch.Tensor:
        """Append the first `given_B` columns to the active rows, cut as plain decoding would. How many stayed, [B]."""
        columns_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        at_BS = self.count_B[:, None] + columns_S
        # Columns past what stays are written too: the next round, or nobody, overwrites them.
        self.tokens_BW.scatter_(1, at_BS, tokens_BS)
        self.gaps_BW.scatter_(1, at_BS, gaps_BS)
        ends_BS = torch.isin(tokens_BS, self.eos_E) & (columns_S < given_B[:, None])
        to_end_B = torch.where(ends_BS, columns_S + 1, tokens_BS.shape[1] + 1).amin(dim=1)
        kept_B = torch.minimum(torch.minimum(given_B, to_end_B), self.limit_B - self.count_B) * self.active_B
        self.count_B = self.count_B + kept_B
        self.active_B = self.active_B & (to_end_B > kept_B) & (self.count_B < self.limit_B)
        return kept_B

    def finished(self) -> bool:
        return not bool(self.active_B.any())

    def read(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
        counts = self.count_B.tolist()
        tokens, gaps = self.tokens_BW.tolist(), self.gaps_BW.tolist()
        return (
            tuple(tuple(row[:n]) for row, n in zip(tokens, counts)),
            tuple(tuple(row[:n]) for row, n in zip(gaps, counts)),
        )


@torch.inference_mode()
def decode(
    target: TargetModel,
    layers: Sequence[int],
    proposer: Proposer | None,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    choice: Choice = GREEDY,
) -> Decoded:
    """Output of every prompt in one batch. `layers`: the captured layers that the proposer reads.

    `choice`: greedy, or sampled without loss. A proposer serves one batch. ValueError for an empty prompt or one that
    leaves no position for a token.
    """
    _check(prompts, limits)
    device = target.device
    _synchronize(device)
    begin = time.perf_counter()
    draft_tokens = proposer.draft_tokens if proposer is not None else 0
    lengths_B = torch.tensor([len(p) for p in prompts], device=device)
    output = Output(
        limit_B=(limits.max_positions - lengths_B).clamp(max=limits.max_new_tokens),
        eos_E=torch.tensor(limits.eos_token_ids, dtype=torch.long, device=device),
        width=limits.max_new_tokens + draft_tokens + 1,
    )
    columns_S = torch.arange(draft_tokens + 1, device=device)
    histogram_S = torch.zeros(draft_tokens + 1, dtype=torch.long, device=device)
    verifies_B = torch.zeros_like(lengths_B)
    cut_B = torch.zeros_like(lengths_B)

    with CachedTarget(target, layers if proposer is not None else (), len(prompts)) as cached:
        verified, gaps_B1 = _prefill(cached, prompts, lengths_B, choice)
        pending_B1 = verified.next_BS.gather(1, lengths_B[:, None] - 1)
        output.add(pending_B1, gaps_B1, torch.ones_like(lengths_B))
        while not output.finished():
            active_B = output.active_B
            proposal = Proposal(pending_B1[:, :0]) if proposer is None else proposer.propose(verified)
            inputs_BS = torch.cat([pending_B1, proposal.tokens_BK], dim=1)
            start_B = lengths_B + output.count_B - 1
            # Past the model's last position only tokens that are cut are computed.
            positions_BS = (start_B[:, None] + columns_S).clamp(max=limits.max_positions - 1)
            seen = cached.forward(inputs_BS, positions_BS)
            verdict = choice.verify(cached.logits(seen.last_BSH), proposal)
            accepted_B = verdict.accepted_B
            cached.commit((columns_S <= accepted_B[:, None]) & active_B[:, None])

            kept_B = output.add(verdict.tokens_BS, verdict.gaps_BS, accepted_B + 1)
            histogram_S += ((columns_S == accepted_B[:, None]) & active_B[:, None]).sum(dim=0)
            verifies_B += active_B
            cut_B += (accepted_B + 1 - kept_B) * active_B
            if proposer is not None:
                verified = Verified(seen.aux_BSC, verdict.tokens_BS, positions_BS, accepted_B + 1)
            pending_B1 = verdict.tokens_BS.gather(1, accepted_B[:, None])

    tokens, gaps = output.read()
    return Decoded(
        tokens=tokens,
        gaps=gaps,
        verifies=tuple(verifies_B.tolist()),
        acceptance=Acceptance(
            histogram=tuple(histogram_S.tolist()),
            prompts=len(prompts),
            generated_tokens=sum(len(row) for row in tokens),
            cut_tokens=int(cut_B.sum()),
        ),
        seconds=time.perf_counter() - begin,
    )


def _prefill(
    cached: CachedTarget, prompts: Sequence[Sequence[int]], lengths_B: torch.Tensor, choice: Choice
) -> tuple[Verified, torch.Tensor]:
    """The prompts, right-padded, in one forward; then every prompt position is verified and its next token known."""
    device = lengths_B.device
    longest = max(len(p) for p in prompts)
    tokens_BP = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts], device=device)
    positions_BP = torch.arange(longest, device=device).expand_as(tokens_BP)
    seen = cached.forward(tokens_BP, positions_BP)
    cached.commit(positions_BP < lengths_B[:, None])
    # Logits only where each prompt ends: the whole [B, P, V] is not needed and may be gigabytes.
    end_B1 = lengths_B[:, None] - 1
    last_B1H = seen.last_BSH.gather(1, end_B1[:, :, None].expand(-1, 1, seen.last_BSH.shape[2]))
    first = choice.verify(cached.logits(last_B1H), Proposal(tokens_BP[:, :0]))
    next_BP = tokens_BP.roll(-1, dims=1).scatter(1, end_B1, first.tokens_BS)
    return Verified(seen.aux_BSC, next_BP, positions_BP, lengths_B), first.gaps_BS


def _check(prompts: Sequence[Sequence[int]], limits: Limits) -> None:
    if limits.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {limits.max_new_tokens}; at least one token must be generated")
    for row, prompt in enumerate(prompts):
        if not 0 < len(prompt) < limits.max_positions:
            raise ValueError(
                f"prompt {row} has {len(prompt)} tokens; it needs at least 1 and at most {limits.max_positions - 1}, "
                f"for the model has {limits.max_positions} positions"
            )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
