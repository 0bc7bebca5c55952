"""In: nothing. Out: `StepResult`, what a step hands to the training loop."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch


@attrs.frozen(eq=False)
class StepResult:
    """`loss`: scalar to backward, normalised so that summed gradients are the optimizer step's.

    `sums`: detached float64 tensors on the step's device, what metrics are made of: they add up over micro-steps and
    ranks. Their names and meaning: the step's class.
    """

    loss: torch.Tensor
    sums: Mapping[str, torch.Tensor]
