"""In: recipes/*.py and tests/golden. Out: every recipe's plan reads as its golden file does, on any machine."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
TEXTS = runpy.run_path(str(GOLDEN / "remake.py"))["golden_texts"]()


def test_every_recipe_has_a_golden_plan_and_nothing_else_has():
    assert {p.name for p in GOLDEN.glob("*.plan")} == {f"{p.stem}.plan" for p in (REPOSITORY / "recipes").glob("*.py")}
    assert TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_a_plan_reads_as_its_golden_file(name):
    assert TEXTS[name] == (GOLDEN / name).read_text(encoding="utf-8"), "if this change is meant: make goldens"


@pytest.mark.parametrize("name", TEXTS)
def test_a_golden_plan_says_nothing_of_this_machine(name):
    assert str(REPOSITORY) not in TEXTS[name]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "recipes").glob("*.py")), ids=lambda p: p.stem)
def test_a_recipe_is_short(path):
    assert len(path.read_text().splitlines()) <= 40
