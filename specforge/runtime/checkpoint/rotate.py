"""In: the folder of checkpoints. Out: the newest ones and what the links need; leftovers of killed saves removed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from specforge.runtime.checkpoint.state import BEST, LATEST

SAVING = ".saving-"
REMOVING = ".removing-"
LINKING = ".linking-"
NAME = re.compile(r"step-(\d{6,})(?:\.(\d+))?")


def checkpoints(parent: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first. Of one step saved twice, the later save counts as newer."""
    found = []
    if parent.is_dir():
        for folder in parent.iterdir():
            if (match := NAME.fullmatch(folder.name)) and folder.is_dir():
                found.append((int(match[1]), int(match[2] or 0), folder))
    return [folder for _, _, folder in sorted(found)]


def rotate(parent: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints (at least one) and those that `latest` and `best` point at."""
    folders = checkpoints(parent)
    steps = {_step(folder): folder for folder in folders}
    newest = list(steps.values())[-max(keep, 1) :]
    linked = [(parent / link).resolve() for link in (LATEST, BEST)]
    for folder in folders:
        if folder not in newest and folder.resolve() not in linked:
            _remove(folder)


def clean(parent: Path) -> None:
    """Remove what a killed save or rotation left behind. Only for the one run that owns `parent`."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        if path.name.startswith((SAVING, REMOVING)) and path.is_dir():
            shutil.rmtree(path)
        elif path.name.startswith(LINKING):
            path.unlink()


def _step(folder: Path) -> int:
    match = NAME.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1])


def _remove(folder: Path) -> None:
    """Rename first: a kill during the removal must not leave half a folder under a checkpoint's name."""
    doomed = folder.with_name(f"{REMOVING}{folder.name}-{os.getpid()}")
    folder.rename(doomed)
    shutil.rmtree(doomed)
