"""In: a recipe file and overrides. Out: `Loaded`: the Recipe and every problem met while it was built."""

from __future__ import annotations

import ast
import sys
import traceback
from pathlib import Path
from typing import Any

import attrs

from specforge import dsl
from specforge.compiler.override import apply
from specforge.compiler.problem import CompileError, Problem
from specforge.dsl.node import Collector, ReadBadValue, Written, collecting
from specforge.dsl.recipe import Recipe
from specforge.dsl.rule import nearest

LOAD_RULES = {
    "recipe-missing": "the recipe file exists and is text",
    "recipe-raised": "a recipe runs without an exception, and imports only names that exist",
    "no-recipe": "a recipe file assigns `recipe = Recipe(...)`",
}


@attrs.frozen
class Loaded:
    """A recipe as it was written. `base` is the folder its paths start from; `file` is how messages name it."""

    recipe: Recipe
    base: Path
    file: str
    problems: tuple[Problem, ...] = ()


def load(path: Path, overrides: tuple[str, ...] = ()) -> Loaded:
    """Execute a recipe file, keeping every problem of its nodes, then apply "path=value" overrides.

    Raises CompileError only where no Recipe came out; else the problems go on with the recipe.
    """
    file = str(path)
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        near = "" if path.exists() else nearest(path.name, (p.name for p in path.parent.glob("*.py")))
        fix = near if near.startswith("did") else "give the path of a recipe, for example recipes/tiny_eagle3.py"
        fix = fix if isinstance(error, OSError) else "save the file as UTF-8"
        raise CompileError(file, [Problem(0, "recipe-missing", f"cannot be read: {reason}", fix)]) from None
    if path.suffix != ".py":
        fix = "give the path of a recipe, for example recipes/tiny_eagle3.py"
        raise CompileError(file, [Problem(0, "recipe-missing", "is no Python file, and a recipe is one", fix)])
    collector = Collector(file, lambda written: None)
    try:
        tree = ast.parse(source, filename=file)
        collector.place = _places(tree)
        scope: dict[str, Any] = {"__name__": "__recipe__", "__file__": file}
        with collecting(collector):
            exec(compile(source, file, "exec"), scope)  # a recipe is a Python program: running it is reading it
    except ReadBadValue:
        raise CompileError(file, collector.problems) from None
    except (Exception, SystemExit) as error:
        raise CompileError(file, [*collector.problems, _raised(error, file, source)]) from None
    recipe = scope.get("recipe")
    if not isinstance(recipe, Recipe):
        what = "defines no recipe" if recipe is None else f"assigns recipe = {type(recipe).__name__}(...)"
        fix = "assign one at the top level: recipe = Recipe(name=..., train=Train(...))"
        raise CompileError(file, [*collector.problems, Problem(0, "no-recipe", what, fix)])
    with collecting(collector):
        recipe = apply(recipe, overrides, collector)
    return Loaded(recipe, path.resolve().parent, file, tuple(collector.problems))


def _places(tree: ast.Module) -> Any:
    calls = {(n.lineno, n.col_offset): n for n in ast.walk(tree) if isinstance(n, ast.Call)}

    def place(written: Written) -> None:
        call = calls.get((written.line, written.column))
        if call is not None:
            by_name = {k.arg: k.value.lineno for k in call.keywords if k.arg is not None}
            by_place = dict(zip(written.given[: written.positional], (a.lineno for a in call.args)))
            written.field_lines = by_place | by_name

    return place


def _raised(error: BaseException, file: str, source: str) -> Problem:
    """One exception of the recipe as one problem that shows the recipe's own lines."""
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    for frame in traceback.extract_tb(sys.exc_info()[2]):
        line = frame.lineno or line if frame.filename == file else line
    rows = source.splitlines()
    near = range(max(1, line - 1), min(len(rows), line + 1) + 1) if line else ()
    shown = "\n".join(f"{'>' if n == line else ' '}{n:4d} | {rows[n - 1]}" for n in near)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    fix = "correct the marked line"
    if isinstance(error, ImportError) and error.name == "specforge.dsl":
        missing = message.split("'")[1]
        message = f"specforge.dsl has no {missing}"
        fix = nearest(missing, dsl.__all__)
    elif isinstance(error, ImportError) and (error.name or "").startswith("specforge"):
        fix = "a recipe imports its nodes from specforge.dsl"
    elif isinstance(error, NameError) and error.name:
        names = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)} - {error.name}
        fix = nearest(error.name, names | set(dsl.__all__))
        fix = fix if fix.startswith("did") else f"import or define {error.name} before this line"
        fix = f"write: from specforge.dsl import {error.name}" if error.name in dsl.__all__ else fix
    return Problem(line, "recipe-raised", f"{type(error).__name__}: {message}", fix, shown)
