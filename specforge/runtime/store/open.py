"""In: a process's assignment. Out: the store of its run."""

from __future__ import annotations

from pathlib import Path

from specforge.runtime.assignment import Assignment
from specforge.runtime.store.shared_dir import SharedDir
from specforge.runtime.store.store import Store

STORE = "features"


def open_store(assignment: Assignment) -> Store:
    """The shared folder of the assignment."""
    return SharedDir(STORE, Path(assignment.store))
