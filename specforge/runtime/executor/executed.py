"""In: nothing. Out: `Executed`, what an executor gives back, also from one process to another; `Executor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import cattrs
from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.checkpoint.save import write_text
from specforge.runtime.checkpoint.state import State
from specforge.runtime.run_folder import RunFolder


@attrs.frozen
class Executed:
    """Where a run stopped. `interrupted`: a signal asked for it; the state was saved and no export was written."""

    state: State
    interrupted: bool
    checkpoint: Path
    exports: tuple[Path, ...]


def write_executed(path: Path, executed: Executed) -> None:
    """Write it for the process that started this one."""
    write_text(path, json.dumps(CONVERTER.unstructure(executed), indent=1) + "\n")


def read_executed(path: Path) -> Executed:
    """What was written."""
    return CONVERTER.structure(json.loads(path.read_text(encoding="utf-8")), Executed)


CONVERTER = cattrs.Converter()
CONVERTER.register_unstructure_hook(Path, str)
CONVERTER.register_structure_hook(Path, lambda text, _: Path(text))
Executor = Callable[[Plan, RunFolder, Console], Executed]
