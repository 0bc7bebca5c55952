"""In: where a run stands. Out: `State` and `Checkpoint`, what a checkpoint folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import cattrs
import torch
from torch import nn

from specforge.plan import Plan

PLAN_FILE = "plan.json"
STATE_FILE = "state.json"
DRAFT_FILE = "draft.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
EMBEDDING = "embed_tokens.weight"
LATEST = "latest"
BEST = "best"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or does not fit what is to be resumed."""


@attrs.frozen
class State:
    """Progress after `step` optimizer steps.

    `epoch` and `position`: the next optimizer step is number `position` of epoch `epoch` (both from 0).
    `max_steps`, `schedule_steps`: as fixed by the first start. `tokens`, `supervised`: trained so far.
    `nonfinite`: updates skipped so far; `lost`: samples skipped because their features were not finite. `best_score`
    is the best simulated acceptance length, `best_step` its step. `digest`: the plan's. `metrics`: the last logged
    values, for people.
    """

    step: int
    epoch: int
    position: int
    max_steps: int
    schedule_steps: int
    tokens: int
    supervised: int
    nonfinite: int
    best_score: float | None
    best_step: int | None
    digest: str
    metrics: dict[str, float | None]
    lost: int = 0


@attrs.frozen(eq=False)
class Checkpoint:
    """Everything that resumes a run: tensors by name, float32 for whatever is trained."""

    plan: Plan
    state: State
    draft: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]


def draft_tensors(draft: nn.Module, masters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The draft's state_dict with `masters` in place of the compute weights, without a frozen embedding."""
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    tensors = {name: masters.get(name, value) for name, value in draft.state_dict().items()}
    return {name: t.detach() for name, t in tensors.items() if not (name == EMBEDDING and name in frozen)}


def state_text(state: State) -> str:
    return json.dumps(cattrs.unstructure(state), indent=1) + "\n"


def read_state(text: str) -> State:
    """The state of `state_text`. Raises ValueError where the text is something else."""
    body: Any = json.loads(text)
    try:
        return cattrs.structure(body, State)
    except Exception as error:
        raise ValueError("; ".join(cattrs.transform_error(error))) from None
