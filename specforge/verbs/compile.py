"""In: a recipe. Out: on standard output its plan as text or JSON; with --out, the plan's file; or one view of it."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from specforge.compiler import compile, load
from specforge.compiler.show import text
from specforge.plan import Plan, PlanError, dump
from specforge.runtime.env import hugging_face_cache
from specforge.verbs.saved_plan import is_saved_plan, read_text

DIFFERS = 3


def compiled(recipe: str, overrides: list[str]) -> Plan:
    """The plan of a recipe file; raises CompileError with every problem, ValueError for a saved plan."""
    if is_saved_plan(recipe):
        raise ValueError(
            f"{recipe} is a saved plan, and this takes the recipe that it was compiled from; run the plan with: "
            f"specforge run {recipe}"
        )
    return compile(load(Path(recipe), tuple(overrides)), (hugging_face_cache(),))


def main(args: argparse.Namespace) -> int:
    plan = compiled(args.recipe, args.overrides)
    saved = _saved(args.diff) if args.diff else ""
    said = sys.stderr if args.json else sys.stdout  # standard output is the JSON then, and nothing else
    if args.out:
        _refuse_other(args.out)
        _write(args.out, dump(plan))
    if args.graph:
        _write(args.graph, _view("draw").drawn(plan, args.graph))
    if args.json:
        print(dump(plan), end="")
    elif args.plan:
        print(text(plan), end="")
    elif not (args.explain or args.diff):
        files = {"saved": args.out, "drawn": args.graph}
        where = " and ".join(f"{done} to {file}" for done, file in files.items() if file)
        where += f"; specforge run {args.out} runs it" if args.out else ""
        print(f"{args.recipe} compiles to plan {plan.digest[:16]}; {where or '--plan shows it'}")
    if args.explain:
        print(_view("explain").text(plan, args.explain), end="", file=said)
    if args.diff:
        try:
            found = _view("diff").compare(saved, plan)
        except PlanError as error:
            raise ValueError(f"--diff {args.diff}: {error}") from None
        print(_view("diff").text(found, args.diff), end="", file=said)
        return DIFFERS if found else 0
    return 0


def _view(name: str) -> ModuleType:
    """A module of the compiler that only one option needs, imported when it is asked for."""
    return importlib.import_module(f"specforge.compiler.{name}")


def _refuse_other(file: str) -> None:
    """A file that is no plan, such as the recipe itself, is not written over."""
    path = Path(file)
    if path.is_file() and path.stat().st_size and not is_saved_plan(file):
        raise ValueError(f"--out {file}: there is a file of that name, and it is no saved plan; name another file")


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; name another path, or free space there") from None


def _saved(file: str) -> str:
    """A saved plan's text, read before --out may write the same file."""
    try:
        return read_text(file)
    except ValueError as error:
        raise ValueError(f"--diff {error}") from None
