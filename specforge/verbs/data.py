"""In: a recipe, or a recording. Out: what its sources become: reports, documents, the draft vocabulary; .ckpt files."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge.runtime.inspection import check_data, vocabulary_text
from specforge.runtime.recording.ckpt import write_ckpt
from specforge.verbs.compile import compiled


def main(args: argparse.Namespace) -> int:
    if args.action == "ckpt":
        print(f"wrote {write_ckpt(Path(args.recording), Path(args.out)):,} files into {args.out}")
        return 0
    plan = compiled(args.recipe, args.overrides)
    if args.action == "check":
        check_data(plan, args.show)
    else:
        print(vocabulary_text(plan))
    return 0
