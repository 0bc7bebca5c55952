"""In: recipes/*.py. Out: tests/golden/NAME.plan, the text of each plan. Usage: python tests/golden/remake.py."""

from pathlib import Path

from specforge.compiler import compile, load
from specforge.compiler.show import text

GOLDEN = Path(__file__).resolve().parent
RECIPES = GOLDEN.parents[1] / "recipes"


def golden_texts() -> dict[str, str]:
    """The text of every recipe's plan, by the golden file's name. Only shipped configs are used, no cache."""
    return {f"{path.stem}.plan": text(compile(load(path))) for path in sorted(RECIPES.glob("*.py"))}


if __name__ == "__main__":
    for old in GOLDEN.glob("*.plan"):
        old.unlink()
    for name, shown in golden_texts().items():
        (GOLDEN / name).write_text(shown, encoding="utf-8")
