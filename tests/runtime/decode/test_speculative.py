"""In: toy targets, prompts of many lengths, drafts right and wrong. Out: the target's own text; counts that add up."""

from __future__ import annotations

import random

import pytest
import torch

from specforge.runtime.decode.speculative import Limits, decode

pytestmark = pytest.mark.cpu
LAYERS = (0, 1, 3)
NAMES = [
    "llama",
    "qwen3",
    "mistral-sliding",
    "qwen3-sliding",
    "gemma2",
    "cohere2",
    "granite",
    "qwen3-experts",
    "latent",
]


def _prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(3, 128) for _ in range(n)] for n in lengths]


def _limits(new: int, eos: tuple[int, ...] = (), positions: int = 96) -> Limits:
    return Limits(max_new_tokens=new, eos_token_ids=eos, max_positions=positions)


def _own(target, prompt: list[int], new: int) -> list[int]:
    """Greedy text of the target without any cache."""
    text = list(prompt)
    for _ in range(new):
        text.append(int(target.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("name", NAMES)
def test_plain_decoding_equals_the_target_without_a_cache(toy_target, name):
    target, prompts = toy_target(name), _prompts(1, [3, 11, 1, 8])
    decoded = decode(target, LAYERS, None, prompts, _limits(12))
    assert [list(t) for t in decoded.tokens] == [_own(target, p, 12) for p in prompts]
    assert len({t for row in decoded.tokens for t in row}) > 10, "the toy says too little to test anything"
    assert decoded.acceptance.acceptance_length == 1.0
    assert decoded.verifies == (11,) * 4


@pytest.mark.parametrize(
    ("name", "draft_tokens", "rows"),
    [
        *((name, draft_tokens, rows) for name in NAMES[:2] for draft_tokens in range(1, 7) for rows in (1, 4)),
        *((name, 4, 4) for name in NAMES[2:]),
    ],
)
def test_speculative_output_equals_plain(toy_target, oracle, name, draft_tokens, rows):
    target = toy_target(name)
    prompts = _prompts(10 * draft_tokens + rows, [random.Random(draft_tokens).randrange(1, 20), 9, 2, 15][:rows])
    plain = decode(target, LAYERS, None, prompts, _limits(18))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    chance = random.Random(draft_tokens)
    wrong = {(row, at) for row in range(rows) for at in range(60) if chance.random() < 0.4}
    proposer = oracle(texts, draft_tokens, lambda row, at: (row, at) in wrong)
    spec = decode(target, LAYERS, proposer, prompts, _limits(18))
    assert spec.tokens == plain.tokens
    assert 1 < spec.acceptance.acceptance_length < draft_tokens + 1
    counts = spec.acceptance
    assert counts.verifies == sum(spec.verifies) == sum(counts.histogram)
    assert counts.generated_tokens == rows + counts.verifies + counts.accepted_tokens - counts.cut_tokens
    assert counts.acceptance_length == pytest.approx(1 + sum(counts.per_position))


@pytest.mark.parametrize("draft_tokens", [1, 3, 6])
def test_a_perfect_draft_is_always_accepted_whole(toy_target, oracle, draft_tokens):
    target, prompts, new = toy_target("llama"), _prompts(3, [5, 12]), 22
    plain = decode(target, LAYERS, None, prompts, _limits(new + draft_tokens))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    spec = decode(target, LAYERS, oracle(texts, draft_tokens), prompts, _limits(new))
    assert spec.acceptance.acceptance_length == draft_tokens + 1
    assert spec.acceptance.per_position == (1.0,) * draft_tokens
    assert spec.verifies == (-(-(new - 1) // (draft_tokens + 1)),) * 2
    assert spec.tokens == tuple(t[:new] for t in plain.tokens)


def test_a_draft_that_is_never_right_costs_one_verify_per_token(toy_target, oracle):
    target, prompts = toy_target("qwen3"), _prompts(4, [5, 12, 7])
    plain = decode(target, LAYERS, None, prompts, _limits(9))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    spec = decode(target, LAYERS, oracle(texts, 4, lambda row, at: True), prompts, _limits(9))
    assert spec.tokens == plain.tokens
    assert spec.acceptance.histogram == (24, 0, 0, 0, 0)


@pytest.mark.parametrize("draft_tokens", [1, 2, 5])
@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_an_end_token_ends_its_row_alone_and_is_kept(toy_target, oracle, draft_tokens, at):
    target, prompts = toy_target("llama"), _prompts(6, [4, 10, 6])
    free = decode(target, LAYERS, None, prompts, _limits(16))
    eos = free.tokens[1][at]
    expected = tuple(t[: t.index(eos) + 1] if eos in t else t for t in free.tokens)
    plain = decode(target, LAYERS, None, prompts, _limits(16, (eos, 0)))
    texts = [p + list(t) for p, t in zip(prompts, free.tokens)]
    spec = decode(target, LAYERS, oracle(texts, draft_tokens), prompts, _limits(16, (eos, 0)))
    assert plain.tokens == spec.tokens == expected
    assert expected[1][-1] == eos
    counts = spec.acceptance
    assert counts.generated_tokens == 3 + counts.verifies + counts.accepted_tokens - counts.cut_tokens
    assert spec.verifies[1] == -(-(len(expected[1]) - 1) // (draft_tokens + 1)), "an ended row must not be counted"


@pytest.mark.parametrize("draft_tokens", [0, 1, 4])
def test_output_ends_where_positions_end(toy_target, oracle, draft_tokens):
    target, prompts = toy_target("llama"), _prompts(7, [20, 29, 3])
    plain = decode(target, LAYERS, None, prompts, _limits(64, positions=30))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    proposer = oracle(texts, draft_tokens) if draft_tokens else None
    spec = decode(target, LAYERS, proposer, prompts, _limits(64, positions=30))
    assert [len(t) for t in spec.tokens] == [10, 1, 27]
    assert spec.tokens == plain.tokens


def test_the_proposer_sees_every_position_once_with_the_targets_own_states(toy_target, oracle):
    target, prompts = toy_target("qwen3"), _prompts(8, [4, 9])
    plain = decode(target, LAYERS, None, prompts, _limits(14))
    texts = [p + list(t) for p, t in zip(prompts, plain.tokens)]
    proposer = oracle(texts, 3, lambda row, at: (row + at) % 3 == 0)
    decode(target, LAYERS, proposer, prompts, _limits(14))
    for row, text in enumerate(texts):
        hidden = target.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
        # hidden_states[i + 1] is the output of layer i, but the last one is normed: layer 3's output is not in there.
        expected_TC = torch.cat([hidden[i + 1][0] for i in LAYERS[:2]], dim=-1)
        aux, following, positions = [], [], []
        for verified in proposer.seen:
            n = int(verified.counts_B[row])
            aux.append(verified.aux_BSC[row, :n])
            following += verified.next_BS[row, :n].tolist()
            positions += verified.positions_BS[row, :n].tolist()
        rising = [i for i in range(len(positions)) if positions[i] == i and i + 1 < len(text)]
        assert len(rising) >= len(prompts[row]) + 9
        assert rising == list(range(len(rising)))
        assert [following[i] for i in rising] == text[1 : len(rising) + 1]
        got_TC = torch.cat(aux)[: len(rising), : expected_TC.shape[1]]
        torch.testing.assert_close(got_TC, expected_TC[: len(rising)], rtol=1e-4, atol=1e-4)


def test_gaps_are_the_top_two_logits_in_ulps(toy_target):
    target, prompts = toy_target("llama"), _prompts(9, [6])
    decoded = decode(target, LAYERS, None, prompts, _limits(3))
    text = torch.tensor([[*prompts[0], *decoded.tokens[0][:2]]])
    top = target.model(input_ids=text).logits[0, -1].topk(2).values.double()
    ulp = 2.0 ** (top[0].abs().log2().floor() - 23)
    assert decoded.gaps[0][2] == pytest.approx(float((top[0] - top[1]) / ulp), rel=1e-3)


@pytest.mark.parametrize(
    ("prompts", "new", "message"),
    [
        ([[]], 4, "prompt 0 has 0 tokens"),
        ([[5], [5] * 96], 4, "prompt 1 has 96 tokens"),
        ([[5]], 0, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_decoded_is_refused(toy_target, prompts, new, message):
    with pytest.raises(ValueError, match=message):
        decode(toy_target("llama"), LAYERS, None, prompts, _limits(new))
