"""In: the folder of a shared store. Out: `SharedFiles`: its files by key and generation, without reading one. No torch.

A file is named KEY.gGENERATION.safetensors, written under a hidden name and renamed. The controller looks after the
files with this class; who puts and gets tensors uses `SharedDir`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from specforge.runtime.control.message import Reference

SUFFIX = ".safetensors"
WRITING = ".writing-"
NAME = re.compile(rf".+\.g\d+{re.escape(SUFFIX)}")


@attrs.frozen
class SharedFiles:
    """The folder `root`, on any file system that every process of the run mounts."""

    root: Path

    def path(self, key: str, generation: int) -> Path:
        """Where the object lies."""
        return self.root / f"{key}.g{generation}{SUFFIX}"

    def holds(self, reference: Reference) -> bool:
        """Whether the object is there with all its bytes."""
        try:
            return self.path(reference.key, reference.generation).stat().st_size == reference.bytes
        except FileNotFoundError:
            return False

    def remove(self, references: Iterable[Reference]) -> None:
        """Objects that are not there are no error."""
        for reference in references:
            self.path(reference.key, reference.generation).unlink(missing_ok=True)

    def clean(self, keep: Iterable[Reference] = ()) -> int:
        """Remove every object but these, and half-written ones. Returns how many. Only while nobody writes."""
        kept = {self.path(reference.key, reference.generation).name for reference in keep}
        doomed = [
            path
            for path in (self.root.iterdir() if self.root.is_dir() else ())
            if path.name.startswith(WRITING) or (NAME.fullmatch(path.name) and path.name not in kept)
        ]
        for path in doomed:
            path.unlink()
        return len(doomed)

    def resident_bytes(self) -> int:
        """Bytes of all objects."""
        found = (path for path in self.root.iterdir() if NAME.fullmatch(path.name)) if self.root.is_dir() else ()
        total = 0
        for path in found:
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # removed since it was listed
        return total
