"""In: a recipe, or a plan that was saved. Out: a trained draft or a recording, and a line that says where."""

from __future__ import annotations

import argparse

from specforge.plan import Plan
from specforge.runtime.executor.work import records
from specforge.runtime.recording.record import RecordResult, record
from specforge.runtime.run import Result, run
from specforge.verbs.compile import compiled
from specforge.verbs.saved_plan import is_saved_plan, read_plan


def main(args: argparse.Namespace) -> int:
    plan = _plan(args)
    if records(plan):
        recorded = record(plan)
        print(_recorded(recorded))
        return recorded.exit_code
    result = run(plan)
    print(_summary(result))
    return result.exit_code


def _plan(args: argparse.Namespace) -> Plan:
    if not (args.recipe.endswith(".json") or is_saved_plan(args.recipe)):
        return compiled(args.recipe, args.overrides)
    if args.overrides:
        raise ValueError(f"{args.recipe} is a plan and runs as it is; use --set with its recipe")
    return read_plan(args.recipe)


def _recorded(result: RecordResult) -> str:
    done = "stopped after" if result.exit_code else "recorded"
    missing = f", {len(result.missing)} rows left out" if result.missing else ""
    return f"{done} {result.documents:,} documents, {result.tokens:,} tokens{missing}: {result.folder}"


def _summary(result: Result) -> str:
    lines = [f"{'stopped' if result.exit_code else 'finished'} at step {result.step}: {result.checkpoint}"]
    lines += [f"exported {path}" for path in result.exports]
    return "\n".join(lines)
