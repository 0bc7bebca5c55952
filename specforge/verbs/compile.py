"""In: a recipe. Out: on standard output its plan as text or JSON; with --out, the plan's file."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge.compiler import compile, load
from specforge.compiler.show import text
from specforge.plan import Plan, dump
from specforge.runtime.env import hugging_face_cache


def compiled(recipe: str, overrides: list[str]) -> Plan:
    """The plan of a recipe file; raises CompileError with every problem."""
    return compile(load(Path(recipe), tuple(overrides)), (hugging_face_cache(),))


def main(args: argparse.Namespace) -> int:
    plan = compiled(args.recipe, args.overrides)
    if args.out:
        Path(args.out).write_text(dump(plan), encoding="utf-8")
    if args.json:
        print(dump(plan), end="")
    elif args.plan:
        print(text(plan), end="")
    else:
        where = f"saved to {args.out}; specforge run {args.out} runs it" if args.out else "--plan shows it"
        print(f"{args.recipe} compiles to plan {plan.digest[:16]}; {where}")
    return 0
