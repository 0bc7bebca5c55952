"""In: toy training settings. Out: the closed form of the learning rate, its warm-up and its end."""

import math

import attrs
import pytest

from specforge.runtime.train.schedule import learning_rate, warmup_steps

pytestmark = pytest.mark.cpu


@pytest.fixture
def settings(train_settings):
    return attrs.evolve(
        train_settings, learning_rate=2.0, schedule="cosine", schedule_steps=10, max_steps=10, warmup_ratio=0.25
    )


def test_warmup_is_linear_and_reaches_the_base(settings):
    assert warmup_steps(settings) == 2
    assert [learning_rate(n, settings) for n in (0, 1)] == [1.0, 2.0]


def test_cosine_is_the_formula(settings):
    for n in range(2, 10):
        assert learning_rate(n, settings) == pytest.approx(1.0 + math.cos(math.pi * (n - 2) / 8), abs=1e-12)
    assert learning_rate(2, settings) == 2.0, "no recursion factor at the handover"
    assert learning_rate(6, settings) == pytest.approx(1.0)


def test_cosine_stays_at_its_end(settings):
    assert [learning_rate(n, settings) for n in (10, 11, 17, 100)] == [0.0] * 4


def test_constant_stays_at_the_base(settings):
    constant = attrs.evolve(settings, schedule="constant")
    assert [learning_rate(n, constant) for n in (0, 2, 9, 50)] == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(("steps", "ratio"), [(1, 0.0), (1, 1.0), (3, 1.0), (1, 0.5)])
def test_schedules_without_a_cosine_part_do_not_divide_by_zero(settings, steps, ratio):
    short = attrs.evolve(settings, schedule_steps=steps, warmup_ratio=ratio)
    rates = [learning_rate(n, short) for n in range(steps + 2)]
    assert all(0.0 <= rate <= 2.0 for rate in rates)
    assert rates[steps:] == [0.0, 0.0]
