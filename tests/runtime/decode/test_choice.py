"""In: target and draft distributions. Out: speculative sampling's output is distributed as the target's own."""

from __future__ import annotations

import math

import pytest
import torch

from specforge.runtime.decode.choice import Greedy, Proposal, Sampled, Sampling
from specforge.runtime.decode.eagle3_proposer import Eagle3Proposer
from specforge.runtime.decode.speculative import Limits, decode
from specforge.runtime.draft.eagle3 import init_draft

pytestmark = pytest.mark.cpu
LAYERS = (0, 1, 3)


def _fits(counts: torch.Tensor, expected: torch.Tensor) -> bool:
    """Pearson's chi-square at the 1e-4 level; bins of fewer than 8 expected are one (Wilson-Hilferty quantile)."""
    small = expected < 8
    observed = torch.cat([counts[~small].double(), counts[small].double().sum()[None]])
    wanted = torch.cat([expected[~small].double(), expected[small].double().sum()[None]])
    if wanted[-1] < 8:
        assert observed[-1] <= 40
        observed, wanted = observed[:-1], wanted[:-1]
    statistic, freedom = float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    return statistic < bound


def _distributions(seed: int, count: int, vocab: int) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)).mul(0.9)


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6), Sampling(1.0, top_p=0.7)], ids=str)
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn drafts", "fixed drafts"])
def test_each_token_is_distributed_as_the_targets(sampling, drawn):
    rows, drafts, vocab = 60_000, 3, 11
    logits_SV, q_KV = _distributions(1, drafts + 1, vocab), _distributions(2, drafts, vocab).softmax(-1)
    sampled = Sampled(sampling, torch.device("cpu"))
    if drawn:
        q_BKV = q_KV.expand(rows, -1, -1)
        tokens_BK = torch.stack([sampled.draw(q_BKV[:, k]) for k in range(drafts)], dim=1)
        proposal = Proposal(tokens_BK, q_BKV)
    else:
        proposal = Proposal(logits_SV[:drafts].argmax(-1).expand(rows, -1))
    verdict = sampled.verify(logits_SV.expand(rows, -1, -1), proposal)
    p_SV = sampling.probabilities(logits_SV)
    for place in range(drafts + 1):
        reached = verdict.accepted_B >= place
        counts = torch.bincount(verdict.tokens_BS[reached, place], minlength=vocab)
        assert int(counts.sum()) > 500
        assert _fits(counts, p_SV[place] * counts.sum()), f"token {place}"
    if drawn:
        expected = torch.minimum(p_SV[0], q_KV[0]).sum()
        share = (verdict.accepted_B >= 1).double().mean()
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / rows)


def test_a_wrong_rule_would_be_seen():
    """The same check refuses what is drawn from the draft instead, and a repair that redraws from p."""
    rows, vocab = 60_000, 11
    p, q = _distributions(1, 1, vocab).softmax(-1)[0], _distributions(2, 1, vocab).softmax(-1)[0]
    generator = torch.Generator().manual_seed(0)
    draft = torch.multinomial(q, rows, replacement=True, generator=generator)
    assert not _fits(torch.bincount(draft, minlength=vocab), p * rows)
    stands = torch.rand(rows, generator=generator) * q[draft] < p[draft]
    redrawn = torch.where(stands, draft, torch.multinomial(p, rows, replacement=True, generator=generator))
    assert not _fits(torch.bincount(redrawn, minlength=vocab), p * rows)


@pytest.mark.parametrize("draft_tokens", [1, 3])
def test_decoded_text_is_distributed_as_plain_sampling(toy_target, draft_settings, draft_tokens):
    """Second and third token of a prompt, against the exact marginals of the target without a cache."""
    target, prompt, rows = toy_target("llama"), [7, 20, 3], 3000
    sampling = Sampling(0.8)
    draft = init_draft(draft_settings(), 3)
    draft.embed_tokens.weight.copy_(target.embedding_VH)
    draft.t2d.zero_()[torch.arange(0, 100, 2)] = True
    draft.d2t.copy_(torch.arange(50))
    sampled = Sampled(sampling, target.device)
    proposer = Eagle3Proposer(draft.eval(), draft_tokens, rows, sampled)
    decoded = decode(target, LAYERS, proposer, [prompt] * rows, Limits(3, (), 96), sampled)
    assert 1.05 < decoded.acceptance.acceptance_length < draft_tokens + 1, "drafts must stand and fall"

    def following(texts: torch.Tensor) -> torch.Tensor:
        return sampling.probabilities(target.model(input_ids=texts, use_cache=False).logits[:, -1])

    vocab = target.head_VH.shape[0]
    first_V = following(torch.tensor([prompt]))[0]
    after_VV = following(torch.cat([torch.tensor([prompt]).expand(vocab, -1), torch.arange(vocab)[:, None]], dim=1))
    tokens = torch.tensor(decoded.tokens)
    assert _fits(torch.bincount(tokens[:, 0], minlength=vocab), first_V * rows)
    assert _fits(torch.bincount(tokens[:, 1], minlength=vocab), first_V @ after_VV * rows)
    pairs = torch.bincount(tokens[:, 0] * vocab + tokens[:, 1], minlength=vocab * vocab)
    assert _fits(pairs, (first_V[:, None] * after_VV * rows).flatten())


def test_a_low_temperature_is_greedy(toy_target, oracle):
    target, prompts = toy_target("qwen3"), [[5, 9, 2], [11]]
    plain = decode(target, LAYERS, None, prompts, Limits(12, (), 96))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    proposer = oracle(texts, 3, lambda row, at: (row + at) % 3 == 0)
    sampled = decode(target, LAYERS, proposer, prompts, Limits(12, (), 96), Sampled(Sampling(1e-4), target.device))
    assert sampled.tokens == plain.tokens


def test_the_same_seed_draws_the_same_text(toy_target):
    def text(seed: int) -> tuple[tuple[int, ...], ...]:
        choice = Sampled(Sampling(1.0, seed=seed), torch.device("cpu"))
        return decode(toy_target("llama"), LAYERS, None, [[5, 9], [3]], Limits(20, (), 96), choice).tokens

    assert text(1) == text(1) != text(2)


def test_top_p_keeps_the_smallest_set():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    torch.testing.assert_close(
        Sampling(1.0, top_p=0.6).probabilities(logits), torch.tensor([0.625, 0.375, 0.0, 0.0]), rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(Sampling(1.0).probabilities(logits), logits.exp())


def test_equal_distributions_always_stand():
    logits = _distributions(4, 3, 7).expand(500, -1, -1)
    sampled = Sampled(Sampling(1.0), torch.device("cpu"))
    q_BKV = sampled.sampling.probabilities(logits[:, :2])
    drafts = torch.stack([sampled.draw(q_BKV[:, k]) for k in range(2)], dim=1)
    assert int(sampled.verify(logits, Proposal(drafts, q_BKV)).accepted_B.min()) == 2


def test_greedy_takes_the_first_disagreement():
    logits = torch.eye(5)[[1, 2, 3, 4]][None]
    verdict = Greedy().verify(logits, Proposal(torch.tensor([[1, 0, 3]])))
    assert (verdict.accepted_B.tolist(), verdict.tokens_BS[0, :2].tolist()) == ([1], [1, 2])


@pytest.mark.parametrize(("arguments", "message"), [((0.0,), "temperature is 0"), ((1.0, 0.0), "top_p is 0")])
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampling(*arguments)
