"""In: the rules and tests/bad_recipes. Out: docs/errors.md. Usage: python docs/errors_page.py, or make docs."""

from pathlib import Path

from specforge.compiler.rules import families, rules

REPOSITORY = Path(__file__).resolve().parents[1]
BAD_RECIPES = REPOSITORY / "tests" / "bad_recipes"
PAGE = REPOSITORY / "docs" / "errors.md"

HEAD = """# Errors

Made from the code by `make docs`; a test compares. The compiler reports every problem of a recipe at once, in the
recipe's order, each with its line, what is wrong with the values, and the edit that fixes it. The word in brackets is
the rule's code. There are {count} rules; each has a recipe that breaks it in tests/bad_recipes/, whose message stands
here.

A refused value causes no further messages: what would read it says nothing. Where a program builds the nodes instead of
a recipe file, the first broken rule of a node raises `specforge.dsl.RecipeError` with the same words.
"""


def page() -> str:
    """The whole page; AssertionError where a rule has no bad recipe."""
    parts = [HEAD.format(count=len(rules()))]
    for family, its_rules in families().items():
        parts.append(f"\n## {family}\n")
        for code, meaning in its_rules.items():
            parts.append(f"\n### {code}\nThe rule: {meaning}.\n\n```text\n{_example(code)}```\n")
    return "".join(parts)


def _example(code: str) -> str:
    message = BAD_RECIPES / f"{code}.txt"
    assert message.is_file(), f"{code} has no bad recipe: write tests/bad_recipes/{code}.py and {code}.txt"
    first, *rest = message.read_text(encoding="utf-8").splitlines(keepends=True)
    assert first.endswith(": 1 problem\n"), f"{message} does not hold exactly one problem"
    return "".join(rest).replace("{repository}/tests/bad_recipes/", "").replace("{repository}/", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
