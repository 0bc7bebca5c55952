"""In: a step number and the training settings. Out: the learning rate of that step, in closed form. No state."""

from __future__ import annotations

import math

from specforge.settings import TrainSettings


def warmup_steps(settings: TrainSettings) -> int:
    """Steps of the linear warm-up: `warmup_ratio` of the schedule, rounded down."""
    assert settings.schedule_steps is not None, "schedule_steps is fixed before training starts"
    return int(settings.warmup_ratio * settings.schedule_steps)


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Learning rate of optimizer step `step` (from 0).

    With w warm-up steps of N: base·(step+1)/w below w; after it "constant" stays at base and "cosine" is
    base·½·(1+cos(π·(step-w)/(N-w))). The cosine stays at its end, 0, from step N on: it never rises again.
    """
    base, warmup, steps = settings.learning_rate, warmup_steps(settings), settings.schedule_steps
    assert steps is not None
    assert step >= 0
    if step < warmup:
        return base * (step + 1) / warmup
    if settings.schedule == "constant":
        return base
    assert settings.schedule == "cosine", settings.schedule
    if step >= steps:
        return 0.0
    return base * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
