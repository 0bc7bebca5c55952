"""In: a `Checkpoint`. Out: a complete folder `step-000123`, the links `latest` and `best`, whenever the kill comes.

A folder is written under a hidden temporary name beside its place, synced file by file, and renamed: so a folder
called `step-*` is complete. A link is made under a temporary name and renamed over the old one.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_file

from specforge import plan as plans
from specforge.runtime.checkpoint.rotate import LINKING, SAVING, rotate
from specforge.runtime.checkpoint.state import (
    BEST,
    DRAFT_FILE,
    LATEST,
    OPTIMIZER_FILE,
    PLAN_FILE,
    STATE_FILE,
    Checkpoint,
    state_text,
)
from specforge.runtime.writing import writing


def save(parent: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write `checkpoint` under `parent`, point `latest` (and `best`, where it is) at it, rotate. Returns its folder.

    A step that is already there is never overwritten in place: the new folder is `step-000123.1`, and the old one
    goes once no link needs it. Raises WriteError where the disk is full: the checkpoints before stand.
    """
    state = checkpoint.state
    name = _free_name(parent, state.step)
    temporary = parent / f"{SAVING}{name}-{os.getpid()}"
    with writing(f"the checkpoint of step {state.step}", parent, half=temporary):
        parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        save_file({n: t.contiguous() for n, t in checkpoint.draft.items()}, temporary / DRAFT_FILE)
        save_file({n: t.contiguous() for n, t in checkpoint.optimizer.items()}, temporary / OPTIMIZER_FILE)
        (temporary / PLAN_FILE).write_text(plans.dump(checkpoint.plan), encoding="utf-8")
        (temporary / STATE_FILE).write_text(state_text(state), encoding="utf-8")
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        folder = parent / name
        temporary.rename(folder)
        sync(parent)
        if state.best_step == state.step:
            point(parent, BEST, name)
        point(parent, LATEST, name)
        rotate(parent, keep)
    return folder


def point(parent: Path, link: str, name: str) -> None:
    """Make `parent/link` a relative symbolic link to `name`, in one replacement."""
    temporary = parent / f"{LINKING}{link}-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    temporary.replace(parent / link)
    sync(parent)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` in one step: readers see the old text or the new one. Raises WriteError."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    with writing(path.name, path.parent, half=temporary):
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_name(parent: Path, step: int) -> str:
    name, generation = f"step-{step:06d}", 0
    while (parent / name).exists():
        generation += 1
        name = f"step-{step:06d}.{generation}"
    return name
