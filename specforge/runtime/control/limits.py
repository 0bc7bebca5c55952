"""In: an agenda. Out: `Limits`, the bounds of a run's control plane; watermarks that no step of the agenda exceeds."""

from __future__ import annotations

from itertools import pairwise

import attrs

from specforge.runtime.data.agenda import Agenda


@attrs.frozen
class Limits:
    """Bounds of a run's control plane. Watermarks count samples that are captured or being captured, untrained yet.

    Capture rests at `high_samples`, or where the store holds `high_bytes`, and goes on at `low_samples`. A lease is for
    `lease_s` seconds; a capture batch that fails `attempts` times is the end of the run.
    """

    high_samples: int
    low_samples: int
    lease_s: float
    attempts: int
    high_bytes: int | None = None


def at_least(limits: Limits, agenda: Agenda) -> Limits:
    """`limits` with watermarks that hold what the trainer takes: two steps are captured while one is trained.

    The low one is at least the largest step, the high one the two largest consecutive steps and a capture batch.
    """
    steps = range(min(agenda.order.steps_per_epoch, agenda.order.total_steps))
    sizes = [sum(map(len, agenda.order.whole_step(step))) for step in steps]
    packs = [len(pack) for held_out in agenda.held_out for pack in held_out.packs]
    largest = max(*sizes, *packs, 0)
    together = max((a + b for a, b in pairwise(sizes)), default=largest)
    low = max(limits.low_samples, largest)
    high = max(limits.high_samples, together + agenda.capture_documents, low + 1)
    return attrs.evolve(limits, high_samples=high, low_samples=low)
