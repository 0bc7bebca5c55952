"""In: nothing. Out: `Executed`, what an executor gives back, and `Executor`, what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.checkpoint.state import State
from specforge.runtime.run_folder import RunFolder


@attrs.frozen
class Executed:
    """Where a run stopped. `interrupted`: a signal asked for it; the state was saved and no export was written."""

    state: State
    interrupted: bool
    checkpoint: Path
    exports: tuple[Path, ...]


Executor = Callable[[Plan, RunFolder, Console], Executed]
