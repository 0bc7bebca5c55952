"""In: a weight read several times. Out: tied, it has the gradient of autograd, of what is reached, again and again."""

import gc
import weakref

import pytest
import torch

from specforge.runtime.draft.layers import RMSNorm
from specforge.runtime.draft.ties import NoTies, Ties, added

pytestmark = pytest.mark.cpu


def unrolled(weight, rows, ties, steps=3):
    """Three reads one after the other, the second through a norm."""
    norm, states = RMSNorm(4, 1e-5).double(), [rows]
    for step in range(steps):
        if step == 1:
            (state,) = norm.then(states[-1], ties.of(weight), added=states[-1])
        else:
            state = added(states[-1], states[-1], ties.of(weight))
        states.append(state)
    return states[1:]


@pytest.fixture
def given():
    torch.manual_seed(0)
    return [torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((4, 4), (6, 4))]


@pytest.mark.parametrize("reached", [1, 2, 3])
def test_a_tied_weight_has_the_gradient_of_the_reads_that_are_reached(given, reached):
    weight, _ = given
    found, wanted = (
        torch.autograd.grad(unrolled(weight, given[1], ties)[reached - 1].square().sum(), given)
        for ties in (Ties(), NoTies())
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert found[0].norm() > 0


def test_a_further_backward_pass_starts_anew(given):
    out = unrolled(*given, Ties())[-1].square().sum()
    first, second = (torch.autograd.grad(out, given[0], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_pass_that_does_not_reach_the_weight_leaves_nothing_for_the_next(given):
    weight, rows = given
    out = unrolled(weight, rows, Ties())[-1].square().sum()
    wanted = torch.autograd.grad(out, weight, retain_graph=True)[0]
    torch.autograd.grad(out, rows, retain_graph=True)
    assert torch.equal(torch.autograd.grad(out, weight)[0], wanted)


def test_all_reads_have_one_tie_and_a_frozen_weight_has_none(given):
    ties = Ties()
    assert ties.of(given[0]).sum is ties.of(given[0]).sum is not None
    with torch.no_grad():
        assert ties.of(given[0]).sum is None
    assert Ties().of(given[0].detach()).sum is None


def test_the_sum_lives_no_longer_than_the_graph(given):
    ties = Ties()
    kept = weakref.ref(ties.of(given[0]).sum)
    out = unrolled(*given, ties)[-1].sum()
    del ties
    gc.disable()  # nothing may wait for a search for cycles
    try:
        out.backward()
        del out
        assert kept() is None
    finally:
        gc.enable()
