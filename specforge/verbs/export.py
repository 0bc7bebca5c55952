"""In: a checkpoint and a format. Out: the exported folder, its path on standard output."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge.runtime.checkpoint.export import export
from specforge.runtime.checkpoint.saved_draft import read_draft

CHECKPOINTS = "checkpoints"


def main(args: argparse.Namespace) -> int:
    checkpoint = Path(args.checkpoint)
    out = Path(args.out) if args.out else default_folder(checkpoint, args.to)
    print(export(checkpoint, args.to, out))
    return 0


def default_folder(checkpoint: Path, format: str) -> Path:
    """RUN/export/FORMAT for a run's latest draft, RUN/export/FORMAT-step-NNNNNN for a checkpoint that is named."""
    folder = read_draft(checkpoint).folder
    if folder.resolve().parent.name != CHECKPOINTS:
        raise ValueError(f"{checkpoint} is a checkpoint outside of its run; say where to write: --out FOLDER")
    exports = folder.parent.parent / "export"
    return exports / (format if folder.resolve() != checkpoint.resolve() else f"{format}-{folder.name}")
