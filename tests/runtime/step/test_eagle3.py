"""In: toy documents. Out: the step's loss, sums and gradients equal the naive version's; its exact wins hold."""

from __future__ import annotations

from dataclasses import replace

import attrs
import numpy as np
import pytest
import torch
from specforge_kernels.soft_target_loss import lk_loss
from torch.utils.flop_counter import FlopCounterMode
from toy_eagle3 import Options, batched, draft, head, made, naive, random_masks, step

from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import DraftCache
from specforge.runtime.step import eagle3, rows
from specforge.runtime.step.eagle3 import SUMS, Eagle3Step
from specforge.runtime.step.rows import row_plan
from specforge.settings import Logits

pytestmark = pytest.mark.cpu

CASES = {
    "one document": (Options(), (8,), 0.6),
    "two documents": (Options(seed=1), (7, 5), 0.6),
    "three documents, one of a single row": (Options(seed=2), (6, 1, 9), 0.5),
    "all supervised": (Options(seed=3), (6, 4), 1.0),
    "sparse": (Options(seed=4, steps=3), (12, 10), 0.15),
    "one step": (Options(seed=5, steps=1), (6, 5), 0.5),
    "more steps than rows": (Options(seed=6, steps=7), (4, 3), 1.0),
    "rows": (Options(seed=7, reduction="rows"), (7, 5), 0.6),
    "padded": (Options(seed=7, reduction="padded"), (7, 3), 0.6),
    "fc_norm": (Options(seed=8, fc_norm=True), (6, 5), 0.6),
    "norm_output": (Options(seed=9, norm_output=True), (6, 5), 0.6),
    "fc_norm and norm_output": (Options(seed=10, fc_norm=True, norm_output=True), (6, 5), 0.4),
    "no grouping of heads": (Options(seed=11, heads=2), (6, 5), 0.6),
    "one key-value head": (Options(seed=12, kv_heads=1), (6, 5), 0.6),
    "LK alpha": (Options(seed=14, lk="alpha"), (7, 5), 0.6),
    "LK lambda": (Options(seed=15, lk="lambda"), (7, 5), 0.6),
    "LK lambda, scale and decay, rows": (
        Options(seed=16, lk="lambda", kl_scale=1.4, kl_decay=3.0, reduction="rows"),
        (7, 5),
        0.5,
    ),
    "LK alpha, more steps than rows": (Options(seed=17, steps=7, lk="alpha"), (4, 3), 1.0),
    "LK lambda, more steps than rows": (Options(seed=18, steps=7, lk="lambda", kl_scale=0.5), (5, 3), 1.0),
    "whole vocabulary": (Options(seed=13, draft_vocab=29), (6, 5), 0.6),
}


def run(model, options, pack, features, tokens_total=None, micro_steps=1):
    model.zero_grad()
    total = pack.supervised if tokens_total is None else tokens_total
    result = step(model, options)(batched(pack, features), total, micro_steps)
    result.loss.backward()
    return result, {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def assert_same(left, right, tolerance=1e-12):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("multiple", [1, 4, 128])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_naive_version_in_float64(name, multiple, monkeypatch):
    """With `multiple` above 1: the counts that a GPU rounds up; what is added weighs nothing."""
    if multiple > 1:
        monkeypatch.setattr(rows, "CUDA_MULTIPLE", multiple)

        def padded(pack, steps, cuda, kernels):
            return row_plan(pack, steps, cuda=True)

        monkeypatch.setattr(eagle3, "row_plan", padded)
    options, lengths, share = CASES[name]
    pack, features = made(random_masks(lengths, share, options.seed), options.seed)
    assert pack.supervised > 0
    model = draft(options)
    denominator = {"tokens": pack.supervised, "rows": pack.rows, "padded": len(lengths) * max(lengths)}[
        options.reduction
    ]
    loss, sums, grads = naive(model, options, pack, features, denominator)
    result, found = run(model, options, pack, features)
    torch.testing.assert_close(result.loss.detach(), loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack([result.sums[n] for n in SUMS]), sums, rtol=1e-12, atol=1e-12)
    assert all(g.abs().max() > 0 for g in grads.values())
    assert_same(found, grads)


def test_float32_stays_within_rounding_of_float64():
    options = Options(seed=20)
    pack, features = made(random_masks((9, 6), 0.6, 20), 20)
    exact, exact_grads = run(draft(options), options, pack, features)
    model = draft(options, torch.float32)
    single = [Features(f.aux_TC.float(), f.last_TH.float()) for f in features]
    result, grads = run(model, options, pack, single)
    assert abs(result.loss.item() - exact.loss.item()) < 1e-5 * exact.loss.item()
    for name, grad in grads.items():
        assert (grad - exact_grads[name]).norm() < 1e-4 * exact_grads[name].norm(), name


def test_bfloat16_weights_give_a_loss_near_float64():
    options = Options(seed=21)
    pack, features = made(random_masks((9, 6), 0.8, 21), 21)
    exact, exact_grads = run(draft(options), options, pack, features)
    model = draft(options, torch.bfloat16)
    result, grads = run(model, options, pack, [Features(f.aux_TC.bfloat16(), f.last_TH.bfloat16()) for f in features])
    assert result.loss.dtype == torch.float32
    assert abs(result.loss.item() - exact.loss.item()) < 0.03 * exact.loss.item()
    for name, grad in grads.items():
        assert grad.dtype == torch.bfloat16
        assert (grad.double() - exact_grads[name]).norm() < 0.15 * exact_grads[name].norm(), name


def test_documents_alone_give_what_they_give_packed():
    options = Options(seed=22)
    pack, features = made(random_masks((8, 5, 7), 0.5, 22), 22)
    whole, grads = run(draft(options), options, pack, features)
    loss, summed = 0.0, {n: torch.zeros_like(g) for n, g in grads.items()}
    for document, feature in zip(pack.documents, features):
        alone, part = run(draft(options), options, Pack((document,)), [feature], pack.supervised)
        loss += alone.loss.item()
        summed = {n: summed[n] + part[n] for n in summed}
    assert loss == pytest.approx(whole.loss.item(), rel=1e-12)
    assert_same(summed, grads)


def test_what_a_pack_asks_of_a_documents_features_is_what_the_document_alone_asks():
    """Mask, shift and attention per document: gradients by feature row tell documents apart, where sums could hide."""
    options = Options(seed=24, steps=7)
    pack, features = made(random_masks((3, 9, 1, 6, 12, 2, 5, 8), 0.5, 24), 24)
    model = draft(options)

    def asked(documents, held):
        leaves = [f.aux_TC.clone().requires_grad_() for f in held]
        given = [Features(aux, f.last_TH) for aux, f in zip(leaves, held)]
        loss = step(model, options)(batched(Pack(documents), given), pack.supervised).loss
        return torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True)

    for at, whole in enumerate(asked(pack.documents, features)):
        (alone,) = asked(pack.documents[at : at + 1], features[at : at + 1])
        torch.testing.assert_close(whole, alone, rtol=1e-10, atol=1e-14)


def test_rows_divides_by_the_micro_step_and_the_number_of_micro_steps():
    options = Options(seed=23, reduction="rows")
    pack, features = made(random_masks((8, 5), 0.5, 23), 23)
    one, _ = run(draft(options), options, pack, features, tokens_total=1000, micro_steps=1)
    four, _ = run(draft(options), options, pack, features, tokens_total=1000, micro_steps=4)
    tokens, _ = run(draft(options), replace(options, reduction="tokens"), pack, features)
    assert one.loss.item() == pytest.approx(4 * four.loss.item(), rel=1e-12)
    assert one.loss.item() == pytest.approx(tokens.loss.item() * pack.supervised / pack.rows, rel=1e-12)
    padded, _ = run(draft(options), replace(options, reduction="padded"), pack, features)
    assert padded.loss.item() == pytest.approx(tokens.loss.item() * pack.supervised / (2 * 8), rel=1e-12)


@pytest.mark.parametrize("norm_output", [False, True])
def test_gradient_checkpointing_gives_the_same_bits_and_keeps_less(norm_output):
    options = Options(seed=25, norm_output=norm_output)
    pack, features = made(random_masks((9, 14), 0.8, 25), 25)
    found = []
    for recompute in (False, True):
        model, kept = draft(options, torch.float32), {}
        settings = attrs.evolve(step(model, options).settings, recompute=recompute)
        single = [Features(f.aux_TC.float(), f.last_TH.float()) for f in features]

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = Eagle3Step(model, head(torch.float32), settings)(batched(pack, single), pack.supervised)
        result.loss.backward()
        found.append((result.loss, [p.grad for p in model.parameters() if p.grad is not None], sum(kept.values())))
    (loss, grads, all_kept), (loss_again, grads_again, less_kept) = found
    assert torch.equal(loss, loss_again)
    assert len(grads) == len(grads_again) > 10
    assert all(torch.equal(a, b) for a, b in zip(grads, grads_again))
    assert less_kept < 0.75 * all_kept


def test_the_teacher_does_to_its_logits_what_the_target_does():
    """Scaling by a power of two is exact, so it may as well be in the head; a cap far off changes nothing."""
    options = Options()
    pack, features = made(random_masks((7, 5), 0.6, 3))
    model, arguments = draft(options), (batched(pack, features), pack.supervised)
    plain = step(model, options)
    scaled = Eagle3Step(model, plain.head_VH, plain.settings, Logits(0.25))(*arguments)
    inside = Eagle3Step(model, plain.head_VH * 0.25, plain.settings)(*arguments)
    assert torch.equal(scaled.loss, inside.loss)
    caps = (Logits(softcap=1e6), Logits(softcap=0.5))
    far, near = (Eagle3Step(model, plain.head_VH, plain.settings, cap)(*arguments) for cap in caps)
    torch.testing.assert_close(far.loss, plain(*arguments).loss)
    assert not torch.isclose(near.loss, far.loss, rtol=1e-3)
    assert not torch.isclose(scaled.loss, far.loss, rtol=1e-3)


def test_rows_that_are_not_needed_may_hold_anything():
    """Beyond a document's last supervised row nothing is read at all; the last hidden state only of teacher rows."""
    options = Options(seed=24, steps=3)
    masks = [[0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]]
    pack, features = made(masks, 24)
    expected = run(draft(options), options, pack, features)
    noisy, changed = [], []
    for document, feature, mask in zip(pack.documents, features, masks):
        last_supervised = max(i for i, m in enumerate(mask) if m)
        aux, last, tokens = feature.aux_TC.clone(), feature.last_TH.clone(), document.tokens.copy()
        aux[last_supervised + 1 :] = 1e3
        tokens[0] = 5
        tokens[last_supervised + 2 :] = 7
        last[[i for i in range(len(mask)) if i == 0 or not mask[i - 1]]] = -1e3
        noisy.append(Features(aux, last))
        changed.append(Document(document.index, tokens, document.loss_mask))
    result, grads = run(draft(options), options, Pack(tuple(changed)), noisy)
    assert torch.equal(result.loss, expected[0].loss)
    assert_same(grads, expected[1], 0.0)


def test_hidden_states_matter_only_where_a_row_is_kept():
    """Other rows give only their step-0 key and value: with the attention's output cut, their states change nothing."""
    options = Options(seed=25, steps=3)
    mask = [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0]
    options = replace(options, draft_vocab=29)
    pack, features = made([mask], 25)
    kept = sorted(t for t in range(len(mask)) if any(mask[t : t + options.steps]))

    def loss_with(rows):
        model = draft(options)
        torch.nn.init.zeros_(model.midlayer.self_attn.o_proj.weight)
        aux = features[0].aux_TC.clone()
        aux[rows] += 1.0
        return run(model, options, pack, [Features(aux, features[0].last_TH)])[0].loss.item()

    others = [t for t in range(len(mask)) if t not in kept]
    assert loss_with(others) == pytest.approx(loss_with([]), rel=1e-13)
    for row in kept:
        assert loss_with([row]) != pytest.approx(loss_with([]), rel=1e-9)


def test_the_last_row_of_a_document_is_dropped():
    options = Options(seed=26)
    with_last, features = made([[0, 1, 1, 0, 1], [1, 1, 1]], 26)
    without, _ = made([[0, 1, 1, 0, 0], [1, 1, 0]], 26)
    assert with_last.supervised == without.supervised == 4
    left, right = (run(draft(options), options, p, features) for p in (with_last, without))
    assert torch.equal(left[0].loss, right[0].loss)
    assert_same(left[1], right[1], 0.0)


@pytest.mark.parametrize("lk", ["alpha", "lambda"])
def test_lk_of_rows_that_nothing_accepts_equals_the_naive_version(lk, monkeypatch):
    """A head so sharp that acceptance underflows to exactly 0 on many rows, and is above 0 on others."""
    seen = []
    monkeypatch.setattr(eagle3, "lk_loss", lambda *given, **how: seen.append(lk_loss(*given, **how)) or seen[-1])
    options = Options(seed=32, lk=lk, kl_scale=0.7, sharp=1e3)
    pack, features = made(random_masks((9, 7), 0.8, 32), 32)
    features = [Features(f.aux_TC, f.last_TH * 300) for f in features]
    model = draft(options)
    loss, sums, grads = naive(model, options, pack, features, pack.supervised)
    result, found = run(model, options, pack, features)
    assert {bool(a > 0) for a in seen[0].acceptance_W} == {False, True}
    assert 0 < loss.item() < float("inf")
    torch.testing.assert_close(result.loss.detach(), loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.stack([result.sums[n] for n in SUMS]), sums, rtol=1e-9, atol=1e-9)
    assert all(torch.isfinite(g).all() for g in found.values())
    for name, grad in grads.items():
        assert (found[name] - grad).norm() <= 1e-6 * grad.norm() + 1e-9, name


@pytest.mark.parametrize("lk", ["alpha", "lambda"])
def test_lk_without_any_row_in_the_draft_vocabulary_is_zero_with_zero_gradients(lk):
    options = Options(seed=33, lk=lk, kl_scale=0.7)
    pack, features = made([[1] * 6], 33)
    model = draft(options)
    model.t2d.fill_(False)
    result = step(model, options)(batched(pack, features), pack.supervised)
    result.loss.backward()
    assert result.loss.item() == 0
    assert all(torch.count_nonzero(p.grad) == 0 for p in model.parameters() if p.requires_grad)
    assert result.sums["ploss_K"].tolist() == [0.0] * options.steps
    assert result.sums["rows_K"].sum() > 0


@pytest.mark.parametrize("lk", ["alpha", "lambda"])
def test_lk_means_divide_by_the_number_of_micro_steps(lk):
    options = Options(seed=34, lk=lk, reduction="rows")
    pack, features = made(random_masks((8, 5), 0.5, 34), 34)
    one, _ = run(draft(options), options, pack, features, micro_steps=1)
    four, _ = run(draft(options), options, pack, features, micro_steps=4)
    assert one.loss.item() == pytest.approx(4 * four.loss.item(), rel=1e-12)
    weighted = sum(0.8**k * x for k, x in enumerate(one.sums["ploss_K"].tolist()))
    assert weighted == pytest.approx(one.loss.item(), rel=1e-12)


@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
@pytest.mark.parametrize("masks", [[[0, 0, 0]], [[0, 0, 1], [1]]], ids=["none", "only last rows"])
def test_without_supervised_rows_the_loss_is_zero_and_so_are_gradients(masks, lk):
    options = Options(seed=27, lk=lk)
    pack, features = made(masks, 27)
    result, grads = run(draft(options), options, pack, features, tokens_total=3)
    assert result.loss.item() == 0
    assert all(torch.count_nonzero(g) == 0 for g in grads.values())
    assert all(result.sums[n].tolist() == [0.0] * options.steps for n in SUMS)


@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_without_gradients_the_loss_and_sums_are_the_same(lk):
    options = Options(seed=28, lk=lk)
    pack, features = made(random_masks((8, 5), 0.5, 28), 28)
    model = draft(options)
    expected, _ = run(model, options, pack, features)
    with torch.no_grad():
        found = step(model, options)(batched(pack, features), pack.supervised)
    assert not found.loss.requires_grad
    assert torch.equal(found.loss, expected.loss.detach())
    assert all(torch.equal(found.sums[n], expected.sums[n]) for n in SUMS)


@pytest.mark.parametrize("norm_output", [False, True])
def test_decoding_a_chain_equals_the_unroll(norm_output):
    """extend() with a cache, fed the true tokens, gives at chain step k what the unroll has for row t at step k."""
    options = Options(seed=29, steps=4, norm_output=norm_output)
    pack, features = made([[1] * 9], 29)
    model = draft(options)
    tokens = torch.from_numpy(pack.documents[0].tokens).long()
    with torch.no_grad():
        plan = row_plan(pack, options.steps).to("cpu")
        states = step(model, options)._unroll(plan, batched(pack, features))
    positions = [plan.position_C[: s.kept] for s in plan.steps]
    rows = [(k, int(t)) for k, at in enumerate(positions) for t in at]
    unrolled = dict(zip(rows, states, strict=True))
    checked = 0
    for t in range(8):
        cache, context = DraftCache(), t + 1
        causal = torch.ones(1, context, context, dtype=torch.bool).tril()
        fused = model.fuse(features[0].aux_TC[None, :context])
        with torch.no_grad():
            out = model.extend(fused, tokens[None, 1 : t + 2], torch.arange(context)[None], cache, causal)[:, -1:]
            for k in range(options.steps):
                if (k, t) not in unrolled:
                    break
                if k > 0:
                    everything = torch.ones(1, 1, context + k, dtype=torch.bool)
                    at = torch.tensor([[t + k]])
                    out = model.extend(out, tokens[None, None, t + 1 + k], at, cache, everything)
                torch.testing.assert_close(model.head_input(out)[0, 0], unrolled[k, t], rtol=1e-11, atol=1e-11)
                checked += 1
    assert checked == len(unrolled)


def expected_flops(model, length, steps, vocab, lk=None):
    """The formulas in the step's docstring, for one document of `length` tokens, all supervised."""
    s = model.settings
    n, heads, kv, width, hidden = length - 1, s.num_heads, s.num_kv_heads, s.head_dim, s.hidden_size
    kept = [n - k for k in range(steps) if n - k > 0]
    total, projected = sum(kept), (heads + 2 * kv) * width
    macs = 2 * n * 3 * s.target_hidden_size * hidden
    macs += 3 * n * hidden * projected + 3 * total * hidden * projected
    macs += 3 * total * heads * width * hidden + 3 * total * 3 * hidden * s.intermediate_size
    macs += (4 if lk == "lambda" else 3) * total * hidden * s.draft_vocab_size + n * s.target_hidden_size * vocab
    pairs = [sum(min(512, q - b) * min(b + 512, q) for b in range(0, q, 512)) + q * k for k, q in enumerate(kept)]
    macs += 7 * width * heads * sum(pairs)
    return 2 * macs


@pytest.mark.parametrize(("length", "lk"), [(4, None), (23, None), (600, None), (23, "alpha"), (23, "lambda")])
def test_flop_counter_sees_the_documented_matmuls(length, lk):
    options = Options(seed=30, steps=5, lk=lk)
    pack, features = made([[1] * length], 30)
    model = draft(options)
    with FlopCounterMode(display=False) as counter:
        run(model, options, pack, features)
    assert counter.get_total_flops() == expected_flops(model, length, 5, 29, lk)


def test_sparse_supervision_costs_less():
    options = Options(seed=31, steps=3)
    flops = []
    for mask in (np.ones(40, int), (np.arange(40) >= 30).astype(int)):
        pack, features = made([mask.tolist()], 31)
        with FlopCounterMode(display=False) as counter:
            run(draft(options), options, pack, features)
        flops.append(counter.get_total_flops())
    assert flops[1] < 0.4 * flops[0]
