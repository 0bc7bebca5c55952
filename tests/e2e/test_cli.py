"""In: the shipped tiny recipe and the command line. Out: the whole path, as a user walks it, in under a minute."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from specforge.cli import main

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]
MINUTE_S = 60.0
LOSSES = ROOT / "tests" / "golden" / "tiny_eagle3.losses.json"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a copy of the recipes, the tiny recipe's saved plan, and its run."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    assert call(folder, "compile", "recipes/tiny_eagle3.py", "--out", "plan.json").returncode == 0
    began = time.monotonic()
    done = call(folder, "run", "plan.json")
    (folder / "seconds").write_text(str(time.monotonic() - began))
    assert done.returncode == 0, done.stderr
    return folder


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specforge", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def test_the_tiny_run_takes_less_than_a_minute(home):
    assert float((home / "seconds").read_text()) < MINUTE_S


def test_the_tiny_run_learns(home):
    lines = [json.loads(line) for line in (home / "runs/tiny-eagle3/metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "evaluation" in line]
    assert evaluations[-1]["acc_0"] > 3 * lines[0]["acc_0"]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"]


def test_a_change_that_is_not_numerical_keeps_the_losses(home):
    """The first twenty steps; later ones magnify the rounding by which one machine differs from another."""
    lines = [json.loads(line) for line in (home / "runs/tiny-eagle3/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "seconds" in line and line["step"] <= 20]
    assert losses == pytest.approx(json.loads(LOSSES.read_text()), rel=1e-5)


def test_the_run_holds_exactly_the_saved_plan(home):
    assert (home / "runs/tiny-eagle3/plan.json").read_bytes() == (home / "plan.json").read_bytes()


def test_running_the_recipe_again_finds_the_run_finished(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert main(["run", "recipes/tiny_eagle3.py"]) == 0
    assert "this run is finished (120 steps)" in capsys.readouterr().err


def test_ctrl_c_while_torch_is_imported_is_130_and_no_trace(home):
    command = [sys.executable, "-m", "specforge.cli", "run", "recipes/tiny_eagle3.py", "--set", "output_dir=early"]
    process = subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "Traceback" not in error


def test_eval_reports_real_decoding(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    words = ["eval", "runs/tiny-eagle3", "--prompts", "recipes/data/tiny_heldout.jsonl", "--limit", "4"]
    assert main([*words, "--max-new-tokens", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["differing_prompts"] == 0
    assert report["evaluated_prompts"] == 4
    assert report["acceptance_length"] >= 1.0
    assert len(report["acceptance_per_position"]) == 5


def test_export_of_the_run_and_of_one_checkpoint(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert main(["export", "runs/tiny-eagle3", "--to", "hf"]) == 0
    assert main(["export", "runs/tiny-eagle3/checkpoints/step-000080", "--to", "sglang"]) == 0
    written = [Path(word) for word in capsys.readouterr().out.split()]
    exports = home / "runs/tiny-eagle3/export"
    assert written == [exports / "hf", exports / "sglang-step-000080"]
    shutil.copytree(home / "runs/tiny-eagle3/checkpoints/step-000080", home / "copied")
    assert main(["export", "copied", "--to", "hf"]) == 1
    assert "say where to write: --out FOLDER" in capsys.readouterr().err
    assert main(["export", "copied", "--to", "sglang", "--out", "apart"]) == 0
    assert (home / "apart/model.safetensors").read_bytes() == (written[1] / "model.safetensors").read_bytes()
    tensors = load_file(written[1] / "model.safetensors")
    assert "embed_tokens.weight" not in tensors
    assert {"fc.weight", "lm_head.weight", "d2t", "t2d"} <= tensors.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "plan.json", "--set", "seed=1"], "plan.json is a plan and runs as it is; use --set with its recipe"),
        (["run", "gone.json"], "gone.json cannot be read: No such file or directory"),
        (["run", "recipes/data/README.json"], "recipes/data/README.json is not a plan that runs"),
        (["eval", "runs/none", "--prompts", "recipes/data/tiny_heldout.jsonl"], "runs/none"),
        (["export", "runs/none", "--to", "hf"], "runs/none"),
        (["compile", "recipes/tiny_eagle3.py", "--out", "gone/plan.json"], "gone/plan.json: No such file or directory"),
        (["run", "recipes/tiny_eagle3.py", "--set", "output_dir=plan.json/runs"], "plan.json/runs: Not a directory"),
        (["fetch", "nobody/nothing"], "cannot fetch 'nobody/nothing'"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(home, monkeypatch, capsys, words, said):
    monkeypatch.chdir(home)
    (home / "recipes/data/README.json").write_text("{}")
    assert main(words) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_refused_resume_is_told_in_the_paths_of_set(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    words = [
        "train.learning_rate=0.5",
        "train.features.source.max_length=48",
        "train.max_steps=50",
        "train.log_every=3",
    ]
    assert main(["run", "recipes/tiny_eagle3.py", *(word for value in words for word in ("--set", value))]) == 1
    lines = [line.strip() for line in capsys.readouterr().err.splitlines() if "->" in line][1:]
    assert lines == [
        "train.learning_rate: 0.003 -> 0.5",
        "train.max_steps: all of the data -> 50",
        "train.features.source.max_length: 64 -> 48",
    ]


def test_a_plan_on_a_full_disk_is_told(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert main(["compile", "recipes/tiny_eagle3.py", "--out", "/dev/full"]) == 1
    assert capsys.readouterr().err.startswith("specforge compile: /dev/full: No space left on device; name another")


def test_a_saved_plan_is_known_by_its_content(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    shutil.copy("plan.json", "plan.txt")
    assert main(["run", "plan.txt"]) == 0
    assert "this run is finished (120 steps)" in capsys.readouterr().err
    for words in (["compile", "plan.json"], ["compile", "plan.txt", "--plan"], ["data", "check", "plan.txt"]):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert "is a saved plan, and this takes the recipe that it was compiled from" in error
        assert f"specforge run {next(word for word in words if word.startswith('plan'))}" in error
    Path("cut.txt").write_text(Path("plan.json").read_text()[:400])
    assert main(["run", "cut.txt"]) == 1
    assert "cut.txt is not a plan that runs: this file is not a plan" in capsys.readouterr().err


def test_a_moved_recipe_is_told_by_eval_and_export(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    Path("recipes").rename("moved")
    try:
        for words in (
            ["eval", "runs/tiny-eagle3", "--prompts", "moved/data/tiny_heldout.jsonl"],
            ["export", "runs/tiny-eagle3", "--to", "hf", "--out", "elsewhere"],
        ):
            assert main(words) == 1
            error = capsys.readouterr().err
            assert f"{home}/recipes/targets/tiny-llama.json is not there" in error
            assert "put the file back there" in error
    finally:
        Path("moved").rename("recipes")


@pytest.mark.parametrize("file", ["recipes/targets/tiny-llama.json", "recipes/data/tiny_prompts.jsonl"])
def test_a_saved_plan_refuses_a_changed_file(home, tmp_path, monkeypatch, capsys, file):
    shutil.copytree(home / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "recipes/tiny_eagle3.py", "--out", "plan.json"]) == 0
    with (tmp_path / file).open("a") as stream:
        stream.write("\n")
    assert main(["run", "plan.json"]) == 1
    assert Path(file).name in capsys.readouterr().err
