"""In: a run's output_dir. Out: `RunFolder`: where everything of a run lies, and the lock that keeps runs apart."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from specforge.runtime.writing import writing


class RunFolderError(ValueError):
    """The run directory cannot be used: another run holds it."""


@attrs.frozen
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def prepared(self) -> Path:
        """Tokenised sources."""
        return self.path / "prepared"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """Written when the run is finished."""
        return self.path / "result.json"

    @property
    def executed(self) -> Path:
        """Where the trainer of a disaggregated run stopped."""
        return self.path / "control" / "executed.json"

    def export(self, format: str) -> Path:
        return self.path / "export" / format

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; it is made where it is not there. The lock goes with the process.

        Raises RunFolderError at once where another run holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunFolderError(
                    f"{self.path} is in use by another run ({file.read().strip() or 'starting'}); wait for it or stop "
                    "it, or give this run another output_dir"
                ) from None
            with writing("the lock of this run", self.path):
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"process {os.getpid()} on {os.uname().nodename}\n".encode())
            yield
