"""In: a checkpoint and a format. Out: the exported folder, its path on standard output."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge.runtime.checkpoint.export import export


def main(args: argparse.Namespace) -> int:
    checkpoint = Path(args.checkpoint)
    out = Path(args.out) if args.out else checkpoint / f"export-{args.to}"
    print(export(checkpoint, args.to, out))
    return 0
