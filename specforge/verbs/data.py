"""In: a recipe. Out: on standard output what its sources become: reports, documents, the draft vocabulary."""

from __future__ import annotations

import argparse

from specforge.runtime.inspection import check_data, vocabulary_text
from specforge.verbs.compile import compiled


def main(args: argparse.Namespace) -> int:
    plan = compiled(args.recipe, args.overrides)
    if args.action == "check":
        check_data(plan, args.show)
    else:
        print(vocabulary_text(plan))
    return 0
