"""In: recipes. Out: the same recipe gives the same bytes; its digest follows the values and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from specforge.cli import main
from specforge.compiler import CompileError, Loaded, compile, load
from specforge.dsl import Capture, Draft, Eagle3, Prompts, Recipe, Target, Train
from specforge.plan import dump

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "recipes" / "tiny_eagle3.py"


def command(*args: str, seed: str, cwd: Path = REPOSITORY) -> bytes:
    """What `specforge ARGS` prints under a hash seed."""
    made = subprocess.run(
        [sys.executable, "-m", "specforge.cli", *args],
        cwd=cwd,
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    return made.stdout


def moved(text: str) -> str:
    """The same recipe with comments, other lines and other breaks."""
    lines = ["# a comment", "", *text.splitlines(), "# the end"]
    return "\n\n".join(lines).replace("Capture(prompts, target),", "Capture(\n prompts,  # rows\n\n target),") + "\n"


@pytest.mark.parametrize("shape", ["--json", "--plan"])
def test_the_same_recipe_gives_the_same_bytes_under_any_hash_seed(shape):
    first, *others = [command("compile", "recipes/tiny_eagle3.py", shape, seed=s) for s in ("0", "1", "random")]
    assert first
    assert all(other == first for other in others)


def test_comments_and_line_moves_do_not_change_the_digest(tmp_path, plan):
    for name in ("targets", "data"):
        (tmp_path / name).symlink_to(REPOSITORY / "recipes" / name)
    path = tmp_path / "renamed.py"
    path.write_text(moved(TINY.read_text()))
    again = compile(load(path))
    assert again.digest == plan.digest
    assert (again.origins, again.base, again.recipe) != (plan.origins, plan.base, plan.recipe)
    assert attrs.evolve(again, origins=(), base="", recipe="") == attrs.evolve(plan, origins=(), base="", recipe="")


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "seed=43",
        "output_dir=elsewhere",
        "train.learning_rate=0.002",
        "train.batch_size=5",
        "train.epochs=6",
        "train.betas=(0.8,0.999)",
        "train.nonfinite_budget=1",
        "train.log_every=6",
        "train.strategy.ttt_length=5",
        "train.strategy.fc_norm=True",
        "train.draft.vocab_size=127",
        "train.features.source.max_length=63",
        "train.features.target.name=other",
        "topology.engine.batch_size=7",
        "topology.engine.dtype=bfloat16",
        "topology.device=H200",
        "evaluate[0].every=41",
        "outputs[0].keep=3",
        "outputs[1].format=hf",
    ],
)
def test_a_changed_value_changes_the_digest(override, plan):
    if override == "outputs[1].format=hf":
        with pytest.raises(CompileError, match="export-twice"):
            compile(load(TINY, (override,)))
        return
    assert compile(load(TINY, (override,))).digest != plan.digest


def test_the_digest_follows_the_content_of_the_files(write):
    path = write()
    before = compile(load(path))
    rows = path.parent / "rows.jsonl"
    os.utime(rows, (0, 0))
    assert compile(load(path)).digest == before.digest
    rows.write_text(rows.read_text().replace("4]", "5]"))
    assert compile(load(path)).digest != before.digest


def test_a_program_compiles_a_recipe_without_a_file():
    rows = Prompts("data/tiny_prompts.jsonl", max_length=64)
    target = Target("tiny-llama", config="targets/tiny-llama.json", random_weights=True)
    recipe = Recipe("program", Train(Capture(rows, target), Eagle3(), draft=Draft(vocab_size=128)))
    made = compile(Loaded(recipe, TINY.parent, "a program"))
    assert [op.name for op in made.ops()] == ["prompts", "capture", "train"]


def test_integers_and_floats_of_the_same_value_are_the_same_plan(write):
    whole = write(train="Capture(rows, target), Eagle3(position_decay=1), learning_rate=1, betas=(0, 0)")
    one = dump(compile(load(whole)))
    real = write(train="Capture(rows, target), Eagle3(position_decay=1.0), learning_rate=1.0, betas=(0.0, 0.0)")
    assert compile(load(real)).digest in one


def test_out_writes_over_plans_and_nothing_else(tmp_path, monkeypatch, capsys, write):
    recipe, saved = write(), tmp_path / "plan.json"
    before = recipe.read_text()
    assert main(["compile", str(recipe), "--out", str(recipe)]) == 1
    assert "it is no saved plan; name another file" in capsys.readouterr().err
    assert recipe.read_text() == before
    saved.touch()
    for _ in range(2):
        assert main(["compile", str(recipe), "--out", str(saved)]) == 0
    assert saved.read_text().startswith("{")


def test_json_stands_alone_on_standard_output(tmp_path, capsys, write):
    recipe, saved = write(), tmp_path / "plan.json"
    assert main(["compile", str(recipe), "--out", str(saved)]) == 0
    capsys.readouterr()
    assert main(["compile", str(recipe), "--json", "--explain", "train", "--diff", str(saved)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["digest"]
    assert "train: eagle3" in printed.err
    assert "no difference" in printed.err


def test_out_saves_the_plan_and_says_how_to_run_it(tmp_path):
    saved = tmp_path / "plan.json"
    printed = command("compile", str(TINY), "--out", str(saved), seed="0")
    assert f"specforge run {saved}" in printed.decode()
    assert saved.read_bytes() == command("compile", str(TINY), "--json", seed="0")


def test_a_mistake_is_a_message_and_status_one(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text("recipe = 5\n")
    made = subprocess.run(
        [sys.executable, "-m", "specforge.cli", "compile", str(path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 1
    assert made.stdout == ""
    assert "Traceback" not in made.stderr
    assert "[no-recipe]" in made.stderr
