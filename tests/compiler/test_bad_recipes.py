"""In: tests/bad_recipes, one recipe or more per rule. Out: each gives exactly its problem, and every rule has one."""

import re
from pathlib import Path

import pytest

from specforge.compiler import CompileError, compile, load
from specforge.compiler.rules import families, rules

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "tests" / "bad_recipes"
THREE = "three_mistakes"
# A recipe's name is its rule's code; what follows "__" tells the recipes of one rule apart.
CODES = {path.stem: path.stem.partition("__")[0] for path in sorted(FOLDER.glob("*.py")) if path.stem != THREE}


def refusal(stem: str) -> CompileError:
    """The error of a bad recipe, compiled with the overrides that its `# --set path=value` lines ask for."""
    path = Path(f"{stem}.py")
    overrides = re.findall(r"^# --set (.*)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    with pytest.raises(CompileError) as caught:
        compile(load(path, tuple(overrides)))
    return caught.value


@pytest.fixture(autouse=True)
def in_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize("code", rules())
def test_every_rule_has_a_bad_recipe(code):
    assert code in CODES.values(), f"write tests/bad_recipes/{code}.py and its message, {code}.txt"


@pytest.mark.parametrize("stem", [*CODES, THREE])
def test_the_message_is_exactly_the_expected_one(stem):
    expected = Path(f"{stem}.txt").read_text(encoding="utf-8")
    assert f"{refusal(stem)}\n".replace(str(REPOSITORY), "{repository}") == expected


@pytest.mark.parametrize("stem", CODES)
def test_a_bad_recipe_gives_its_one_problem_and_nothing_that_follows_from_it(stem):
    assert [p.code for p in refusal(stem).problems] == [CODES[stem]]


@pytest.mark.parametrize("stem", CODES)
def test_a_problem_says_where_and_how_to_mend_it(stem):
    problem = refusal(stem).problems[0]
    text = Path(f"{stem}.py").read_text(encoding="utf-8", errors="replace")
    of_the_whole_file = CODES[stem] in ("recipe-missing", "no-recipe") or text.startswith("# --set ")
    assert problem.line > 0 or of_the_whole_file
    assert problem.fix
    assert "<refused value>" not in str(problem)


def test_three_mistakes_give_three_messages_in_recipe_order():
    problems = refusal(THREE).problems
    assert [(p.line, p.code) for p in problems] == [
        (4, "file-not-found"),
        (8, "layer-out-of-range"),
        (12, "whole-number"),
    ]


def test_no_message_is_left_without_its_recipe():
    assert {p.stem for p in FOLDER.glob("*.txt")} == {p.stem for p in FOLDER.glob("*.py")}


def test_there_are_at_least_fifteen_rules():
    assert len(rules()) >= 15
    assert sum(len(family) for family in families().values()) == len(rules())


WHERE = {
    "Recipe.train": 'recipe = Recipe(name="x", train=5, outputs=[Checkpoint(), Checkpoint()])',
    "Train.features": 'recipe = Recipe(name="x", train=Train(5, Eagle3()), outputs=[Checkpoint(), Checkpoint()])',
    "Capture.source": (
        'recipe = Recipe(name="x", train=Train(Capture(5, T), Eagle3()), outputs=[Checkpoint(), Checkpoint()])'
    ),
    "Capture.target": (
        'recipe = Recipe(name="x", train=Train(Capture(P, 5), Eagle3()), outputs=[Checkpoint(), Checkpoint()])'
    ),
    "Train.strategy": (
        'recipe = Recipe(name="x", train=Train(Capture(P, T), 5), outputs=[Checkpoint(), Checkpoint()])'
    ),
    "Recipe.topology": (
        'recipe = Recipe(name="x", train=Train(Capture(P, T), Eagle3()), topology=5, '
        "outputs=[Checkpoint(), Checkpoint()])"
    ),
    "Recipe.evaluate": (
        'recipe = Recipe(name="x", train=Train(Capture(P, T), Eagle3()), evaluate=5, '
        "outputs=[Checkpoint(), Checkpoint()])"
    ),
}


@pytest.mark.parametrize("field", WHERE)
def test_a_refused_node_hides_neither_another_mistake_nor_causes_one(field, tmp_path):
    path = tmp_path / "recipe.py"
    tiny = REPOSITORY / "recipes"
    path.write_text(
        "from specforge.dsl import *\n"
        f'T = Target("tiny", config="{tiny / "targets/tiny-llama.json"}", random_weights=True)\n'
        f'P = Prompts("{tiny / "data/tiny_prompts.jsonl"}", max_length=64)\n'
        f"{WHERE[field]}\n"
    )
    with pytest.raises(CompileError) as caught:
        compile(load(path))
    kind = "node-list" if field == "Recipe.evaluate" else "node-kind"
    assert sorted(p.code for p in caught.value.problems) == ["checkpoint-twice", kind]
    assert any(p.what.startswith(f"{field} is 5") for p in caught.value.problems)
