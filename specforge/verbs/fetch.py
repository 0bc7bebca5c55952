"""In: a target's name. Out: the folder it was converted into, on standard output."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge.runtime.env import cache_folder
from specforge.runtime.fetch import fetch


def main(args: argparse.Namespace) -> int:
    print(fetch(args.name, cache_folder(), Path(args.file) if args.file else None))
    return 0
