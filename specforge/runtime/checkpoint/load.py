"""In: a checkpoint folder. Out: its `Checkpoint` on the CPU, and its tensors in a draft. Refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from specforge import plan as plans
from specforge.plan import Plan
from specforge.runtime.checkpoint.rotate import checkpoints
from specforge.runtime.checkpoint.state import (
    DRAFT_FILE,
    EMBEDDING,
    LATEST,
    OPTIMIZER_FILE,
    PLAN_FILE,
    STATE_FILE,
    Checkpoint,
    CheckpointError,
    State,
    read_state,
)

T = TypeVar("T")
RESUME_FIX = "point the link `latest` beside it at another step-* folder, or remove the run directory to start again"


def find_latest(parent: Path) -> Path | None:
    """The checkpoint to resume from: `latest`, else (killed before the first link) the newest folder, else None."""
    linked = (parent / LATEST).resolve()
    if linked.is_dir() and linked.parent == parent.resolve():
        return linked
    found = checkpoints(parent)
    return found[-1] if found else None


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint folder. Raises CheckpointError that names the file that is missing or damaged."""
    return read(folder, RESUME_FIX, with_optimizer=True)


def read_plan(folder: Path, fix: str = RESUME_FIX) -> Plan:
    """The plan of a checkpoint folder; raises as `read` does."""
    return _part(folder / PLAN_FILE, lambda path: plans.load(path.read_text(encoding="utf-8")), fix)


def read_progress(folder: Path, fix: str = RESUME_FIX) -> State:
    """The state of a checkpoint folder; raises as `read` does."""
    return _part(folder / STATE_FILE, lambda path: read_state(path.read_text(encoding="utf-8")), fix)


def read(folder: Path, fix: str, *, with_optimizer: bool) -> Checkpoint:
    """What `load` reads; without its optimizer the tensors that only a resumed run needs stay on disk.

    `fix`: the edit that CheckpointError names.
    """
    return Checkpoint(
        plan=read_plan(folder, fix),
        state=read_progress(folder, fix),
        draft=_part(folder / DRAFT_FILE, load_file, fix),
        optimizer=_part(folder / OPTIMIZER_FILE, load_file, fix) if with_optimizer else {},
    )


def _part(path: Path, reading: Callable[[Path], T], fix: str) -> T:
    try:
        return reading(path)
    except (OSError, ValueError, SafetensorError) as error:
        why = "the file is not there" if isinstance(error, FileNotFoundError) else error
        raise CheckpointError(f"{path.parent} is not a complete checkpoint: {path.name}: {why}; {fix}") from None


@torch.no_grad()
def restore(checkpoint: Checkpoint, draft: nn.Module, folder: Path) -> None:
    """Copy a checkpoint's draft tensors (float32 masters, d2t, t2d) into `draft`, still in float32.

    Raises CheckpointError that lists every tensor that is missing, unknown or of another shape.
    """
    own = draft.state_dict()
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    wanted = {name: t for name, t in own.items() if not (name == EMBEDDING and name in frozen)}
    found = checkpoint.draft
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is unknown to this draft" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, this draft needs {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if problems:
        raise CheckpointError(
            f"{folder} does not fit this recipe's draft: {'; '.join(problems)}. Resume with the recipe that made it, "
            "or give this recipe another output_dir"
        )
    for name, tensor in wanted.items():
        tensor.copy_(found[name])


def check_optimizer(checkpoint: Checkpoint, masters: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Raise CheckpointError unless the checkpoint has both moments and the step count of every master, in its shape."""
    wanted: dict[str, torch.Size] = {}
    for name, master in masters.items():
        wanted |= {f"exp_avg/{name}": master.shape, f"exp_avg_sq/{name}": master.shape, f"step/{name}": torch.Size()}
    found = {name: tensor.shape for name, tensor in checkpoint.optimizer.items()}
    if found != wanted:
        wrong = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise CheckpointError(
            f"{folder}/{OPTIMIZER_FILE} does not fit this recipe's draft: {', '.join(wrong)}. Resume with the recipe "
            "that made it, or give this recipe another output_dir"
        )
