"""In: a checkpoint folder or a run's folder. Out: its plan, state and draft tensors, without the optimizer."""

from __future__ import annotations

from pathlib import Path

import attrs

from specforge.runtime.checkpoint.load import find_latest, read
from specforge.runtime.checkpoint.state import DRAFT_FILE, Checkpoint, CheckpointError
from specforge.settings import TrainSettings


@attrs.frozen(eq=False)
class SavedDraft:
    """A checkpoint's draft. `checkpoint` holds no optimizer tensors."""

    folder: Path
    checkpoint: Checkpoint

    @property
    def train(self) -> TrainSettings:
        """The settings of the training that made it."""
        settings = self.checkpoint.plan.ops("train")[0].settings
        assert isinstance(settings, TrainSettings)
        return settings

    @property
    def base(self) -> Path:
        """The folder that the plan's relative paths start from."""
        return Path(self.checkpoint.plan.base)


def read_draft(path: Path) -> SavedDraft:
    """`path`: a checkpoint (`.../checkpoints/step-000123`, `latest`), or a run's folder: its latest checkpoint then.

    Raises CheckpointError where there is none, or it is damaged.
    """
    folder = _folder(path)
    return SavedDraft(folder, read(folder, "name another step-* folder", with_optimizer=False))


def _folder(path: Path) -> Path:
    if (path / DRAFT_FILE).is_file():
        return path.resolve()
    for parent in (path / "checkpoints", path):
        if latest := find_latest(parent):
            return latest
    what = "holds no checkpoint" if path.is_dir() else "does not exist"
    raise CheckpointError(
        f"{path} {what}; name a run's folder (runs/NAME) or one of its checkpoints (runs/NAME/checkpoints/step-000123)"
    )
