"""In: the cases. Out: the loss, metrics and gradients of the op, and the teacher, equal plain float64 formulas."""

from __future__ import annotations

import pytest
import torch

from specforge_kernels.soft_target_loss import LK, AfterHead, Teacher, lk_loss, op, soft_target_loss, teacher
from specforge_kernels.soft_target_loss.cases import SMALL, TOLERANCE, Case, inputs, lk_inputs
from specforge_kernels.soft_target_loss.reference import reference
from specforge_kernels.soft_target_loss.top import top


def relative(found, expected):
    return ((found.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def widened(given):
    """The same (rounded) arguments in float64."""
    rows, head, taught, *rest = given.arguments
    logits = taught.logits_Ud.double()
    exact = Teacher(logits, taught.lse_full_U.double(), torch.logsumexp(logits, -1), taught.argmax_U)
    return [rows.detach().double().requires_grad_(), head.detach().double().requires_grad_(), exact, *rest]


def compare(case, dtype, device, lk=None):
    """Largest relative error of loss, metrics and gradients against the float64 reference."""
    given = inputs(case, dtype, device) if lk is None else lk_inputs(case, lk, dtype, device)
    exact = widened(given)
    found, expected = (soft_target_loss if lk is None else lk_loss)(*given.arguments), reference(*exact)
    if dtype != torch.bfloat16:  # rounded logits may put another draft token first
        assert torch.equal(found.correct_W, expected.correct_W)
    grads = torch.autograd.grad(found.loss * 3, given.leaves)
    wanted = torch.autograd.grad(expected.loss * 3, exact[:2])
    assert all(g.dtype == dtype for g in grads)
    pairs = zip([*found[:3], *grads], [*expected[:3], *wanted], strict=True)
    return max(relative(a, b) for a, b in pairs)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_value_metrics_and_gradients(name, dtype, lk):
    assert compare(SMALL[name], dtype, "cpu", lk) < TOLERANCE[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_value_metrics_and_gradients_on_the_gpu(name, dtype, lk):
    assert compare(SMALL[name], dtype, "cuda", lk) < TOLERANCE[dtype]


def loss_of(given):
    return (lk_loss if isinstance(given.arguments[4], LK) else soft_target_loss)(*given.arguments)


def made_inputs(name, lk):
    return inputs(SMALL[name], torch.float64) if lk is None else lk_inputs(SMALL[name], lk, torch.float64)


@pytest.mark.cpu
@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_chunks_do_not_change_the_result(monkeypatch, lk):
    given = made_inputs("odd sizes", lk)
    whole = loss_of(given)
    grads = torch.autograd.grad(whole.loss, given.leaves)
    monkeypatch.setattr(op, "chunk_rows", lambda rows, vocab, cuda: 5)
    cut = loss_of(given)
    for a, b in zip([*whole, *grads], [*cut, *torch.autograd.grad(cut.loss, given.leaves)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.cpu
def test_gpu_chunks_are_of_few_sizes_of_at_least_4096_rows():
    assert op.chunk_rows(14329, 32000, cuda=True) == 4096
    assert op.chunk_rows(14330, 16384, cuda=True) == 8192
    assert op.chunk_rows(100_000, 152_000, cuda=True) == 4096
    assert op.chunk_rows(0, 152_000, cuda=True) == 1
    assert op.chunk_rows(10, 152_000, cuda=True) == 10
    assert op.chunk_rows(0, 100, cuda=False) == 1


@pytest.mark.cpu
def test_rows_of_weight_zero_have_metrics_and_no_gradient():
    given = inputs(SMALL["all rows of weight 0"], torch.float64)
    found = soft_target_loss(*given.arguments)
    assert found.loss.item() == 0
    assert (found.ce_W > 0).all()
    assert (found.acceptance_W > 0).all()
    assert all(torch.count_nonzero(g) == 0 for g in torch.autograd.grad(found.loss, given.leaves))


def one_step(kind, weight_W):
    steps_W = torch.zeros(len(weight_W), dtype=torch.int64)
    return LK(kind, weight_W, weight_W > 0, steps_W, torch.ones(1, dtype=torch.float64), kl_scale=0.5)


@pytest.mark.cpu
@pytest.mark.parametrize("lk", ["alpha", "lambda"])
def test_lk_without_counted_rows_is_zero_and_so_are_gradients(lk):
    given = lk_inputs(SMALL["all rows of weight 0"], lk, torch.float64)
    found = lk_loss(*given.arguments)
    assert found.loss.item() == 0
    assert all(torch.count_nonzero(g) == 0 for g in torch.autograd.grad(found.loss, given.leaves))


@pytest.mark.cpu
def test_a_row_of_acceptance_zero_adds_nothing_to_alpha_but_counts():
    lse_U = torch.tensor([0.0, 0.7])
    taught = Teacher(torch.tensor([[0.0, -1e4], [0.0, 0.0]]), lse_U, lse_U, torch.tensor([0, 0]))
    head, index, d2t = torch.tensor([[-1e4], [1e4]]), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int64)
    rows = torch.tensor([[1.0], [1e-5]], requires_grad=True)
    both = lk_loss(rows, head, taught, index, one_step("alpha", torch.ones(2)), d2t)
    both.loss.backward()
    assert both.acceptance_W[0].item() == 0
    assert both.loss.item() == pytest.approx(-both.acceptance_W[1].log().item() / 2, rel=1e-6)
    assert rows.grad[0].item() == 0
    assert abs(rows.grad[1].item()) > 0


@pytest.mark.cpu
def test_alpha_of_a_denormal_acceptance_has_gradients_of_unit_scale():
    """1 / acceptance would overflow; the gradient of log acceptance never exceeds 1."""
    zero = torch.zeros(1)
    taught = Teacher(torch.tensor([[0.0, -1e4]]), zero, zero, torch.tensor([0]))
    rows, head = torch.ones(1, 1), torch.tensor([[-95.0], [0.0]], requires_grad=True)
    found = lk_loss(rows, head, taught, zero.long(), one_step("alpha", torch.ones(1)), torch.zeros(2).long())
    found.loss.backward()
    assert 0 < found.acceptance_W.item() < 1e-38
    assert found.loss.item() == pytest.approx(95, rel=0.01)
    torch.testing.assert_close(head.grad, torch.tensor([[-1.0], [1.0]]), rtol=1e-2, atol=1e-6)


@pytest.mark.cpu
def test_ties_of_draft_and_teacher_count_half():
    """As autograd of torch.minimum has it: equal distributions, and one that agrees at some ids."""
    logits_Ud = torch.log(torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.5, 0.25]], dtype=torch.float64))
    zero = torch.zeros(2, dtype=torch.float64)
    taught = Teacher(logits_Ud, zero, zero, torch.tensor([2, 1]))
    head = logits_Ud[0][:, None].clone().requires_grad_()
    rows = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    for kind in ("alpha", "lambda"):
        objective = one_step(kind, torch.ones(2).double())
        arguments = (rows, head, taught, torch.tensor([0, 1]), objective, torch.zeros(3, dtype=torch.int64))
        grads = torch.autograd.grad(lk_loss(*arguments).loss, [rows, head])
        for a, b in zip(grads, torch.autograd.grad(reference(*arguments).loss, [rows, head]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.cpu
@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_acceptance_of_exactly_zero_is_finite(lk):
    """Teacher and draft on different ids, with probabilities that underflow."""
    logits_Ud = torch.tensor([[0.0, -1e4, -1e4]])
    zero = torch.zeros(1)
    taught = Teacher(logits_Ud, zero, zero, torch.tensor([0]))
    rows, head = torch.ones(1, 1, requires_grad=True), torch.tensor([[-1e4], [1e4], [0.0]], requires_grad=True)
    weight = torch.ones(1) if lk is None else one_step(lk, torch.ones(1))
    loss = soft_target_loss if lk is None else lk_loss
    found = loss(rows, head, taught, torch.tensor([0]), weight, torch.zeros(3, dtype=torch.int64))
    found.loss.backward()
    assert found.acceptance_W.item() == 0
    assert found.correct_W.item() is False
    assert torch.isfinite(found.loss)
    assert torch.isfinite(rows.grad).all()
    assert torch.isfinite(head.grad).all()


@pytest.mark.cpu
@pytest.mark.parametrize("lk", [None, "alpha", "lambda"])
def test_without_gradients_values_are_the_same(lk):
    given = made_inputs("odd sizes", lk)
    with torch.no_grad():
        found = loss_of(given)
    assert not found.loss.requires_grad
    expected = loss_of(given)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.cpu
def test_backward_twice_gives_the_same_gradients():
    given = inputs(SMALL["odd sizes"], torch.float64)
    loss = soft_target_loss(*given.arguments).loss
    first = torch.autograd.grad(loss, given.leaves, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(loss, given.leaves), strict=True))


@pytest.mark.cpu
@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("case", [Case(5, 4, 7, 40, 11), Case(5, 4, 300, 700, 11), Case(5, 4, 40, 40, 11)], ids=str)
def test_teacher_equals_its_formulas(case, chunk):
    given = inputs(case, torch.float64)
    z = given.last_UH @ given.head_VH.T
    taught = teacher(given.last_UH, given.head_VH, given.kept_d, chunk)
    torch.testing.assert_close(taught.logits_Ud, z[:, given.kept_d])
    torch.testing.assert_close(taught.lse_full_U, torch.logsumexp(z, -1))
    torch.testing.assert_close(taught.lse_draft_U, torch.logsumexp(z[:, given.kept_d], -1))
    assert torch.equal(taught.argmax_U, z.argmax(-1))
    inside = torch.isin(z.argmax(-1), given.kept_d)
    share = (taught.lse_draft_U - taught.lse_full_U).exp()
    assert (share <= 1 + 1e-12).all()
    assert case.draft_vocab < case.vocab or inside.all()


@pytest.mark.cpu
@pytest.mark.parametrize(("scale", "softcap"), [(0.0625, None), (1.0, 1.5), (3.0, 2.0)])
@pytest.mark.parametrize("case", [Case(5, 4, 300, 700, 11), Case(5, 4, 40, 40, 11)], ids=str)
def test_teacher_scales_and_then_caps_its_logits(case, scale, softcap):
    given = inputs(case, torch.float64)
    z = given.last_UH @ given.head_VH.T * scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    taught = teacher(given.last_UH, given.head_VH, given.kept_d, 4, after=AfterHead(scale, softcap))
    torch.testing.assert_close(taught.logits_Ud, z[:, given.kept_d])
    torch.testing.assert_close(taught.lse_full_U, torch.logsumexp(z, -1))
    torch.testing.assert_close(taught.lse_draft_U, torch.logsumexp(z[:, given.kept_d], -1))
    assert torch.equal(taught.argmax_U, z.argmax(-1))


@pytest.mark.cpu
@pytest.mark.parametrize("width", [1, 5, 255, 256, 1000, 1024])
def test_top_is_the_lowest_id_on_ties(width):
    rng = torch.Generator().manual_seed(width)
    logits = torch.randint(0, 4, (64, width), generator=rng).float()
    expected = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(top(logits), expected)
    assert torch.equal(top(logits.bfloat16()), expected)


@pytest.mark.cpu
def test_teacher_takes_the_lowest_id_on_ties():
    head_VH = torch.ones(500, 3)
    taught = teacher(torch.ones(2, 3), head_VH, torch.arange(4))
    assert taught.argmax_U.tolist() == [0, 0]
