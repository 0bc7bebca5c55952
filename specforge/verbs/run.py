"""In: a recipe, or a plan that was saved. Out: a trained draft in its run folder, and a line that says where."""

from __future__ import annotations

import argparse

from specforge.plan import Plan
from specforge.runtime.run import Result, run
from specforge.verbs.compile import compiled
from specforge.verbs.saved_plan import is_saved_plan, read_plan


def main(args: argparse.Namespace) -> int:
    result = run(_plan(args))
    print(_summary(result))
    return result.exit_code


def _plan(args: argparse.Namespace) -> Plan:
    if not (args.recipe.endswith(".json") or is_saved_plan(args.recipe)):
        return compiled(args.recipe, args.overrides)
    if args.overrides:
        raise ValueError(f"{args.recipe} is a plan and runs as it is; use --set with its recipe")
    return read_plan(args.recipe)


def _summary(result: Result) -> str:
    lines = [f"{'stopped' if result.exit_code else 'finished'} at step {result.step}: {result.checkpoint}"]
    lines += [f"exported {path}" for path in result.exports]
    return "\n".join(lines)
