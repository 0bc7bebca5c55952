"""In: toy targets and random drafts. Out: every draft token and its logits equal EAGLE3's formulas, computed naively.

The naive version keeps no cache and pads nothing: it computes each round of each row alone, in float64.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import batch
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.decode.eagle3_proposer import Eagle3Proposer
from specforge.runtime.decode.speculative import Limits, decode
from specforge.runtime.draft.eagle3 import Eagle3Draft, init_draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.settings import CaptureSettings, Eagle3Settings

pytestmark = pytest.mark.cpu
LAYERS = (0, 1, 3)


def _draft(settings, target, seed: int = 3) -> Eagle3Draft:
    draft = init_draft(settings, seed)
    kept = torch.tensor(sorted(random.Random(seed).sample(range(settings.vocab_size), settings.draft_vocab_size)))
    with torch.no_grad():
        draft.embed_tokens.weight.copy_(target.embedding_VH)
        draft.d2t.copy_(kept - torch.arange(len(kept)))
        draft.t2d.zero_()[kept] = True
        for name, parameter in draft.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.3, 0.3, len(parameter)) * (1 + len(name) % 3))
    return draft.eval()


class Naive:
    """Section 1.5 and 1.6 of EAGLE3's training, one row at a time, float64, straight from the state_dict."""

    def __init__(self, draft: Eagle3Draft) -> None:
        self.w = {name: t.double() for name, t in draft.state_dict().items()}
        self.s = draft.settings
        self.kept = [int(i + o) for i, o in enumerate(draft.d2t)]

    def norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.s.rms_norm_eps).sqrt() * self.w[name]

    def rope(self, x, position):
        half = self.s.head_dim // 2
        angle = position * self.s.rope["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) * 2 / self.s.head_dim)
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=1)

    def project(self, hidden, token, position):
        """Query, key [heads, D] rotated, and value, of one row."""
        joined = torch.cat(
            [
                self.norm(self.w["embed_tokens.weight"][token], "midlayer.input_layernorm.weight"),
                self.norm(hidden, "midlayer.hidden_norm.weight"),
            ]
        )
        q, k, v = ((self.w[f"midlayer.self_attn.{n}_proj.weight"] @ joined).view(-1, self.s.head_dim) for n in "qkv")
        return self.rope(q, position), self.rope(k, position), v

    def layer(self, hidden, query, keys, values):
        group = self.s.num_heads // self.s.num_kv_heads
        heads = []
        for n in range(self.s.num_heads):
            k, v = (torch.stack([x[n // group] for x in xs]) for xs in (keys, values))
            heads.append(torch.softmax(k @ query[n] / self.s.head_dim**0.5, dim=0) @ v)
        hidden = hidden + self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
        x = self.norm(hidden, "midlayer.post_attention_layernorm.weight")
        gate, up = (self.w[f"midlayer.mlp.{n}_proj.weight"] @ x for n in ("gate", "up"))
        out = hidden + self.w["midlayer.mlp.down_proj.weight"] @ (torch.nn.functional.silu(gate) * up)
        return self.norm(out, "norm.weight") if self.s.norm_output else out

    def fuse(self, aux):
        thirds = aux.double().chunk(3)
        if self.s.fc_norm:
            thirds = [self.norm(x, f"fc_norm.{i}.weight") for i, x in enumerate(thirds)]
        return self.w["fc.weight"] @ torch.cat(list(thirds))

    def chain(self, aux_TC, text, count):
        """Draft tokens and logits after `text` (T+1 tokens; the target has seen the first T)."""
        last = len(aux_TC) - 1
        keys, values = [], []
        for t, aux in enumerate(aux_TC):
            hidden = self.fuse(aux)
            query, k, v = self.project(hidden, text[t + 1], t)
            keys.append(k)
            values.append(v)
        tokens, logits = [], []
        for step in range(count):
            if step:
                query, k, v = self.project(hidden, tokens[-1], last + step)
                keys.append(k)
                values.append(v)
            hidden = self.layer(hidden, query, keys, values)
            normed = hidden if self.s.norm_output else self.norm(hidden, "norm.weight")
            logits.append(self.w["lm_head.weight"] @ normed)
            tokens.append(self.kept[int(logits[-1].argmax())])
        return tokens, torch.stack(logits)


class Recording(Eagle3Proposer):
    """Keeps what every round proposed, and hands out an oracle's tokens instead, so that some are accepted."""

    def __init__(self, draft, oracle, rows) -> None:
        super().__init__(draft, oracle.draft_tokens, rows)
        self.oracle = oracle
        self.rounds: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.logits: list[torch.Tensor] = []

    def propose(self, verified):
        self.logits = []
        drafts = super().propose(verified).tokens_BK
        end = verified.positions_BS.gather(1, verified.counts_B[:, None] - 1)[:, 0]
        self.rounds.append((end, drafts, torch.cat(self.logits, dim=1)))
        return self.oracle.propose(verified)

    def _choose(self, state_B1H):
        self.logits.append(self.draft.logits(state_B1H))
        return super()._choose(state_B1H)


@pytest.mark.parametrize("changes", [{}, {"norm_output": True, "fc_norm": True}], ids=["eagle3", "eagle3.1"])
@pytest.mark.parametrize("draft_tokens", [1, 4])
def test_every_round_proposes_what_the_formulas_say(toy_target, draft_settings, oracle, changes, draft_tokens):
    target = toy_target("llama")
    draft = _draft(draft_settings(**changes), target)
    chance = random.Random(draft_tokens)
    prompts = [[chance.randrange(3, 128) for _ in range(n)] for n in (3, 9, 1)]
    limits = Limits(12, (), 96)
    texts = [p + list(t) for p, t in zip(prompts, decode(target, LAYERS, None, prompts, limits).tokens)]
    teller = oracle(texts, draft_tokens, lambda row, at: (at + row) % 4 == 0)
    proposer = Recording(draft, teller, len(prompts))
    decoded = decode(target, LAYERS, proposer, prompts, limits)
    assert sum(n > 0 for n in decoded.acceptance.histogram) > 1, "rounds must accept different numbers"
    documents = [Document(i, np.array(t, np.int32), np.ones(len(t), bool)) for i, t in enumerate(texts)]
    engine = TransformersEngine(target, CaptureSettings(LAYERS, False, "float32", 8))
    naive, checked = Naive(draft), 0
    for row, features in enumerate(engine.capture(documents)):
        active = [r for r in proposer.rounds if int(r[0][row]) + 1 < len(texts[row])]
        for end, drafts, logits in active:
            t = int(end[row])
            tokens, expected = naive.chain(features.aux_TC[: t + 1], texts[row][: t + 2], draft_tokens)
            torch.testing.assert_close(logits[row].double(), expected, rtol=1e-3, atol=1e-3)
            assert drafts[row].tolist() == tokens
            checked += 1
    assert checked > 9
    assert set(draft.kept_ids_d.tolist()) >= {int(d) for _, drafts, _ in proposer.rounds for d in drafts.flatten()}


@pytest.mark.parametrize(("name", "draft_vocab_size"), [("llama", 50), ("qwen3", 128)])
@pytest.mark.parametrize("draft_tokens", range(1, 7))
@pytest.mark.parametrize("rows", [1, 4])
def test_a_random_draft_does_not_change_the_output(
    toy_target, draft_settings, name, draft_vocab_size, draft_tokens, rows
):
    target = toy_target(name)
    draft = _draft(draft_settings(draft_vocab_size=draft_vocab_size), target, seed=draft_tokens)
    chance = random.Random(draft_tokens)
    prompts = [[chance.randrange(3, 128) for _ in range(n)] for n in (7, 2, 16, 5)[:rows]]
    limits = Limits(10, (9, 17), 96)
    plain = decode(target, LAYERS, None, prompts, limits)
    spec = decode(target, LAYERS, Eagle3Proposer(draft, draft_tokens, rows), prompts, limits)
    assert spec.tokens == plain.tokens
    counts = spec.acceptance
    assert counts.generated_tokens == rows + counts.verifies + counts.accepted_tokens - counts.cut_tokens


def test_rows_of_a_batch_do_not_touch_each_other(toy_target, draft_settings):
    target = toy_target("qwen3")
    draft = _draft(draft_settings(), target)
    prompts = [[5, 6, 7], [9] * 14, [100, 50]]
    limits = Limits(14, (), 96)
    together = decode(target, LAYERS, Eagle3Proposer(draft, 3, 3), prompts, limits)
    alone = [decode(target, LAYERS, Eagle3Proposer(draft, 3, 1), [p], limits) for p in prompts]
    assert together.tokens == tuple(a.tokens[0] for a in alone)
    assert together.verifies == tuple(a.verifies[0] for a in alone)


def test_near_the_last_position_output_is_whole(toy_target, draft_settings):
    target = toy_target("llama")
    draft = _draft(draft_settings(), target)
    prompts = [[5] * 93, [7] * 60, [3] * 95]
    limits = Limits(40, (), 96)
    plain = decode(target, LAYERS, None, prompts, limits)
    spec = decode(target, LAYERS, Eagle3Proposer(draft, 5, 3), prompts, limits)
    assert spec.tokens == plain.tokens
    assert [len(t) for t in spec.tokens] == [3, 36, 1]


@pytest.mark.parametrize("changes", [{}, {"norm_output": True}], ids=["eagle3", "norm_output"])
def test_a_draft_trained_on_a_text_until_it_knows_it_is_accepted_whole(toy_target, draft_settings, changes):
    """Training and decoding agree on rows, shifts and positions, or the chain would break at some depth."""
    target, depth = toy_target("llama"), 4
    prompt, limits = [5, 90, 33, 7, 61, 12], Limits(24, (), 96)
    text = np.array(prompt + list(decode(target, LAYERS, None, [prompt], limits).tokens[0]), np.int32)
    document = Document(0, text, np.arange(len(text)) >= len(prompt) - 1)
    pack = Pack((document,))
    features = TransformersEngine(target, CaptureSettings(LAYERS, True, "float32", 1)).capture([document])
    draft = _draft(draft_settings(draft_vocab_size=128, **changes), target)
    step = Eagle3Step(draft, target.head_VH, Eagle3Settings(depth, 0.8, "tokens"))
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        result = step(batch(pack, features, torch.device("cpu")), pack.supervised)
        if torch.equal(result.sums["correct_K"], result.sums["rows_K"]):
            break
        result.loss.backward()
        optimizer.step()
    else:
        pytest.fail("the toy did not learn its text")
    spec = decode(target, LAYERS, Eagle3Proposer(draft, depth, 1), [prompt], Limits(16, (), 96))
    assert spec.acceptance.acceptance_length == depth + 1
    assert spec.tokens[0] == tuple(text[len(prompt) : len(prompt) + 16].tolist())
