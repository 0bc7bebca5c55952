"""In: toy modules and gradients. Out: masters against a naive float64 AdamW, clipping, skipped updates, bf16 copies."""

import math

import attrs
import pytest
import torch
from torch import nn

from specforge.runtime.train.optimizer import Optimizer

pytestmark = pytest.mark.cpu
TRUE = torch.tensor(True)


class Toy(nn.Module):
    """Two trainable tensors, a frozen one, an integer buffer."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.a = nn.Parameter(torch.randn(5, 3, generator=generator))
        self.b = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.randn(2, 2, generator=generator), requires_grad=False)
        self.register_buffer("ids", torch.arange(4))


@pytest.fixture
def settings(train_settings):
    return attrs.evolve(
        train_settings, learning_rate=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5
    )


def gradients(steps):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 3, generator=generator), torch.randn(4, generator=generator)) for _ in range(steps)]


def give(toy, grads):
    for weight, grad in zip((toy.a, toy.b), grads, strict=True):
        weight.grad = grad.to(weight.dtype, copy=True)


def naive_adamw(start, grads, rates, settings):
    """AdamW with global-norm clipping, element by element in Python floats. Returns the final values."""
    values = [float(x) for tensor in start for x in tensor.flatten()]
    moment, square = [0.0] * len(values), [0.0] * len(values)
    beta1, beta2 = settings.betas
    for n, (step, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        flat = [float(x) for tensor in step for x in tensor.flatten()]
        coefficient = min(1.0, settings.max_grad_norm / (math.sqrt(sum(g * g for g in flat)) + 1e-6))
        for i, g in enumerate(flat):
            g *= coefficient
            moment[i] = beta1 * moment[i] + (1 - beta1) * g
            square[i] = beta2 * square[i] + (1 - beta2) * g * g
            values[i] *= 1 - rate * settings.weight_decay
            corrected = math.sqrt(square[i] / (1 - beta2**n)) + settings.eps
            values[i] -= rate * moment[i] / (1 - beta1**n) / corrected
    return values


def test_float32_matches_naive_adamw(settings):
    toy = Toy()
    start = [toy.a.detach().clone(), toy.b.detach().clone()]
    optimizer = Optimizer(toy, settings)
    assert optimizer.masters["a"] is toy.a, "in float32 the masters are the weights"
    steps, rates = gradients(6), [1e-2, 5e-3, 1e-3, 2e-2, 1e-2, 0.0]
    for grads, rate in zip(steps, rates, strict=True):
        give(toy, grads)
        optimizer.accumulate()
        update = optimizer.step(rate, TRUE)
        assert float(update.grad_norm) == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in grads)), rel=1e-6)
        assert bool(update.finite)
    expected = torch.tensor(naive_adamw(start, steps, rates, settings))
    torch.testing.assert_close(torch.cat([toy.a.flatten(), toy.b]).detach(), expected, rtol=2e-6, atol=2e-6)


def test_a_small_gradient_is_not_scaled_up(settings):
    toy = Toy()
    optimizer = Optimizer(toy, attrs.evolve(settings, max_grad_norm=1e6))
    reference = torch.optim.AdamW(
        [other := nn.Parameter(toy.a.detach().clone())], lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1
    )
    for grads in gradients(3):
        give(toy, grads)
        optimizer.accumulate()
        optimizer.step(1e-2, TRUE)
        other.grad = grads[0].clone()
        reference.step()
    torch.testing.assert_close(toy.a, other, rtol=1e-6, atol=1e-7)


def test_bf16_weights_at_one_move_over_many_tiny_updates(settings):
    toy = Toy()
    tiny = attrs.evolve(settings, precision="bfloat16", weight_decay=0.0)
    optimizer = Optimizer(toy, tiny)
    assert toy.b.dtype == torch.bfloat16
    for _ in range(100):
        give(toy, (torch.ones(5, 3), torch.ones(4)))
        optimizer.accumulate()
        optimizer.step(1e-4, TRUE)
    # one update of 1e-4 is far below bf16's spacing of 1/256 under 1.0; a hundred are not
    torch.testing.assert_close(optimizer.masters["b"], torch.full((4,), 0.99), rtol=0, atol=1e-5)
    assert torch.equal(toy.b, torch.full((4,), 0.99).to(torch.bfloat16))
    assert (toy.b < 1.0).all()


def test_frozen_parameters_stay_out(settings):
    toy = Toy()
    optimizer = Optimizer(toy, attrs.evolve(settings, precision="bfloat16"))
    assert list(optimizer.masters) == ["a", "b"]
    frozen = toy.frozen.clone()
    give(toy, gradients(1)[0])
    optimizer.accumulate()
    optimizer.step(1e-2, TRUE)
    assert torch.equal(toy.frozen, frozen)
    assert toy.ids.dtype == torch.int64
    assert {key.partition("/")[2] for key in optimizer.state()} == {"a", "b"}


def test_accumulation_sums_in_float32(settings):
    """300 gradients of 1.0: bf16 would stop at 256."""
    toy = Toy()
    optimizer = Optimizer(toy, attrs.evolve(settings, precision="bfloat16"))
    for _ in range(300):
        give(toy, (torch.ones(5, 3), torch.ones(4)))
        optimizer.accumulate()
    assert float(optimizer.step(0.0, TRUE).grad_norm) == pytest.approx(300 * math.sqrt(19))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_non_finite_step_changes_nothing(settings, precision, poison):
    """The same updates with a poisoned one between them end at the same bits."""

    def train(poisoned):
        toy = Toy()
        optimizer = Optimizer(toy, attrs.evolve(settings, precision=precision))
        for n, grads in enumerate(gradients(4)):
            if poisoned and n in (0, 2):
                bad = (grads[0].clone(), grads[1])
                if poison == "gradient":
                    bad[0][1, 1] = float("inf")
                give(toy, bad)
                optimizer.accumulate()
                assert not bool(optimizer.step(1e-2, torch.tensor(poison != "loss")).finite)
            give(toy, grads)
            optimizer.accumulate()
            assert bool(optimizer.step(1e-2, TRUE).finite)
        return toy, optimizer.state()

    (clean, state), (other, other_state) = train(False), train(True)
    assert torch.equal(clean.a, other.a)
    assert torch.equal(clean.b, other.b)
    assert state.keys() == other_state.keys()
    assert all(torch.equal(state[key], other_state[key]) for key in state)


def test_state_goes_into_another_optimizer(settings):
    bf16 = attrs.evolve(settings, precision="bfloat16")
    toy = Toy()
    optimizer = Optimizer(toy, bf16)
    steps = gradients(4)
    for grads in steps[:2]:
        give(toy, grads)
        optimizer.accumulate()
        optimizer.step(1e-2, TRUE)
    saved = {key: value.clone() for key, value in optimizer.state().items()}
    resumed_toy = Toy()
    with torch.no_grad():
        resumed_toy.a.copy_(optimizer.masters["a"])
        resumed_toy.b.copy_(optimizer.masters["b"])
    resumed = Optimizer(resumed_toy, bf16)
    resumed.load(saved)
    for grads in steps[2:]:
        for some, its in ((toy, optimizer), (resumed_toy, resumed)):
            give(some, grads)
            its.accumulate()
            its.step(1e-2, TRUE)
    assert all(torch.equal(optimizer.masters[n], resumed.masters[n]) for n in optimizer.masters)
