"""In: problems. Out: `CompileError`, all of a recipe's mistakes at once, in the recipe's order."""

from __future__ import annotations

from collections.abc import Iterable

from specforge.dsl.problem import Problem

__all__ = ["CompileError", "Problem"]


class CompileError(ValueError):
    """A recipe that cannot run. `problems` are sorted by line; each has a line, what is wrong, and the fix."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        count = len(self.problems)
        head = f"{file}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(p.text(file) for p in self.problems)]))
