"""In: a broken rule. Out: `Problem`, what a user is told: where, what (with the values) and the edit that fixes it."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(order=True)
class Problem:
    """One mistake. `line` is the line of the recipe (0: none); `code` names the rule, listed in docs/errors.md.

    `node` and `field`: what it is about, where that is one field of a node; equal texts are one problem all the same.
    """

    line: int
    code: str
    what: str
    fix: str
    shown: str = ""
    node: Any = attrs.field(default=None, eq=False, order=False, repr=False)
    field: str = attrs.field(default="", eq=False, order=False, repr=False)

    def text(self, file: str) -> str:
        """The message for a terminal, with the recipe's name in front."""
        where = f"{file}:{self.line}: " if self.line else f"{file}: "
        lines = [f"{where}{self.what} [{self.code}]"]
        lines += [f"    {row}" for row in self.shown.splitlines()]
        return "\n".join([*lines, f"    fix: {self.fix}"])


class RecipeError(ValueError):
    """A node that breaks a rule of its own; raised at the first one where a program (not the loader) builds it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.what} [{problem.code}]; fix: {problem.fix}")
        self.problem = problem
