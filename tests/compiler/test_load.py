"""In: recipe files with mistakes of Python. Out: one problem that shows the recipe's own lines, and the fix."""

import pytest

from specforge.compiler import CompileError, load
from specforge.dsl.node import written

pytestmark = pytest.mark.null


def problem(path):
    """The one problem of a recipe that gives no Recipe."""
    with pytest.raises(CompileError) as caught:
        load(path)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("text", "line", "what", "fix", "shown"),
    [
        ("a = 1\nb = (\n", 2, "SyntaxError: '(' was never closed", "correct the marked line", ">   2 | b = ("),
        ("from specforge.dsl import Capturr\n", 1, "specforge.dsl has no Capturr", "did you mean Capture?", ">   1 |"),
        ("import specforge.dls\n", 1, "No module named 'specforge.dls'", "from specforge.dsl", ">   1 |"),
        ("import nothing_here\n", 1, "No module named 'nothing_here'", "correct the marked line", ">   1 |"),
        ("targets = 1\nx = target\n", 2, "'target' is not defined", "did you mean targets?", ">   2 | x = target"),
        ("x = Prompts('a')\n", 1, "'Prompts' is not defined", "write: from specforge.dsl import Prompts", ">   1 |"),
        ("x = zqw\n", 1, "'zqw' is not defined", "import or define zqw before this line", ">   1 |"),
        (
            "a = 1\n\nb = a / 0\nc = 2\n",
            3,
            "ZeroDivisionError: division by zero",
            "the marked line",
            ">   3 | b = a / 0",
        ),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError", "the marked line", ">   2 |     return 1 / 0"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3", "the marked line", ">   2 | sys.exit(3)"),
        ("import json\njson.loads('')\n", 2, "JSONDecodeError", "the marked line", ">   2 | json.loads('')"),
    ],
)
def test_an_exception_shows_the_recipes_own_lines(tmp_path, text, line, what, fix, shown):
    path = tmp_path / "recipe.py"
    path.write_text(text)
    found = problem(path)
    assert (found.code, found.line) == ("recipe-raised", line)
    assert what in found.what
    assert fix in found.fix
    assert shown in found.shown
    assert "Traceback" not in str(found)


def test_problems_before_an_exception_are_told_with_it(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text("from specforge.dsl import Draft\nDraft(vocab_size=0)\nDraft(vocab_sise=1)\n1 / 0\n")
    with pytest.raises(CompileError) as caught:
        load(path)
    assert [(p.line, p.code) for p in caught.value.problems] == [
        (2, "whole-number"),
        (3, "unknown-field"),
        (4, "recipe-raised"),
    ]


def test_reading_a_refused_value_in_the_recipe_is_no_second_problem(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text("from specforge.dsl import *\nd = Draft(vocab_size=0)\ne = Draft(vocab_size=d.vocab_size // 2)\n")
    assert problem(path).line == 2


@pytest.mark.parametrize(("text", "what"), [("x = 1\n", "defines no recipe"), ("recipe = 5\n", "recipe = int(...)")])
def test_a_file_without_a_recipe(tmp_path, text, what):
    path = tmp_path / "recipe.py"
    path.write_text(text)
    assert what in problem(path).what
    assert "recipe = Recipe(" in problem(path).fix


def test_a_missing_file_names_the_nearest_one(tmp_path):
    (tmp_path / "qwen_eagle3.py").write_text("")
    found = problem(tmp_path / "qwen_eagle.py")
    assert found.code == "recipe-missing"
    assert found.fix == "did you mean qwen_eagle3.py?"
    assert "give the path of a recipe" in problem(tmp_path / "nowhere" / "x.py").fix
    assert "give the path of a recipe" in problem(tmp_path).fix


def test_a_byte_order_mark_is_no_mistake(write):
    path = write()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert not load(path).problems


def test_lines_of_nodes_and_of_their_arguments(write):
    path = write()
    path.write_text(
        "from specforge.dsl import *\n"
        "def rows(name):\n"
        "    return Prompts(\n"
        "        name,\n"
        "        max_length=32)\n"
        "recipe = Recipe(\n"
        "    'x',\n"
        "    train=Train(\n"
        "        Capture(rows('rows.jsonl'), Target('tiny', config='tiny.json', random_weights=True)),\n"
        "        Eagle3(\n"
        "            ttt_length=3,\n"
        "        ),\n"
        "        draft=Draft(vocab_size=4),\n"
        "    ),\n"
        ")\n"
    )
    recipe = load(path).recipe
    assert written(recipe).line_of("name") == 7
    assert written(recipe).line_of("train") == 8
    assert written(recipe.train).line_of("strategy") == 10
    assert written(recipe.train.strategy).line_of("ttt_length") == 11
    assert written(recipe.train.features.source).line == 3
    assert written(recipe.train.features.source).line_of("path") == 4
    assert written(recipe.train.features.source).line_of("max_length") == 5
    assert written(recipe.train.draft).line_of("num_heads") == 13
