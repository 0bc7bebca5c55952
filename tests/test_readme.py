"""In: README.md. Out: its commands exist, its compile commands and its recipes work; nothing in it is left unread."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specforge.cli import parser
from specforge.compiler import compile, load
from specforge.plan import dump

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = {"bash", "sh", "console"}
# Blocks of these languages show output or a layout: nothing to run.
SHOWN_ONLY = {"text", "json"}
# What these commands do needs a network, minutes or a run that exists; tests of their own cover them. Here they are
# parsed only, so that the README names no verb and no option that does not exist.
PARSED_ONLY = {"run", "eval", "export", "fetch", "data"}


def commands() -> list[str]:
    """Every command line of the README, without prompts, comments and continuation lines."""
    found = []
    for language, body in BLOCKS:
        if language in SHELL:
            for row in body.replace("\\\n", " ").splitlines():
                line = row.removeprefix("$ ").partition(" #")[0].strip()
                if line and not line.startswith("#"):
                    found.append(line)
    return found


def recipes() -> list[str]:
    return [body for language, body in BLOCKS if language == "python" and "Recipe(" in body]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder in which the README's commands find the recipes and may write, with the plan they saved."""
    (tmp_path / "recipes").mkdir()
    for path in (REPOSITORY / "recipes").iterdir():
        (tmp_path / "recipes" / path.name).symlink_to(path)
    saved = compile(load(tmp_path / "recipes" / "smollm2_eagle3.py"))
    (tmp_path / "plan.json").write_text(dump(saved), encoding="utf-8")
    return tmp_path


def test_the_two_commands_are_there():
    assert [c for c in commands() if c.startswith("make ")][:2] == ["make demo", "make test"]


def test_every_block_is_of_a_kind_that_is_read():
    assert {language for language, _ in BLOCKS} <= SHELL | SHOWN_ONLY | {"python"}
    assert len(recipes()) == len([1 for language, _ in BLOCKS if language == "python"]), "a block that is no recipe"
    assert recipes()


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("specforge ")])
def test_a_command_is_a_make_target(command):
    words = shlex.split(command)
    assert words[0] == "make", f"what is {command!r}?"
    assert set(words[1:]) <= targets()


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("specforge ")])
def test_a_command_is_one_that_specforge_understands(command):
    verb = parser().parse_args(shlex.split(command)[1:]).verb
    assert verb in PARSED_ONLY | {"compile"}


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("specforge compile ")])
def test_a_compile_command_works_without_a_network(command, copy):
    words = [sys.executable, "-m", "specforge.cli", *shlex.split(command)[1:]]
    made = subprocess.run(words, cwd=copy, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout


def test_there_is_a_compile_command():
    assert [c for c in commands() if c.startswith("specforge compile ")]


@pytest.mark.parametrize("number", range(len(recipes())))
def test_a_recipe_compiles(number, copy):
    path = copy / "recipes" / f"readme_{number}.py"
    path.write_text(recipes()[number], encoding="utf-8")
    assert compile(load(path)).ops("train")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:recipes|docs|specforge|tests)/[\w./-]*\w", README))))
def test_a_path_that_the_readme_names_exists(path):
    assert (REPOSITORY / path).exists()
