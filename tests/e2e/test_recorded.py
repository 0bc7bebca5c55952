"""In: the shipped recording recipe and the command line. Out: features recorded, then trained on, as a user does it."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specforge.cli import main

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]
TRAIN = """
from specforge.dsl import *
target = Target("tiny-llama", config="targets/tiny-llama.json", random_weights=True)
{sources}
recipe = Recipe(
    name="{name}",
    train=Train(Capture(rows, target), Eagle3(ttt_length=2), draft=Draft(vocab_size=128), batch_size=8, max_steps=6),
    topology=Colocated(Transformers(batch_size=1)),
    evaluate=[Evaluate(heldout, every=3)],
    outputs=[Export("sglang")],
)
"""
LIVE = """
rows = Prompts("data/tiny_prompts.jsonl", max_length=64)
heldout = Prompts("data/tiny_heldout.jsonl", max_length=64)
"""
READ = """
rows = Recorded("features")
heldout = Recorded("heldout")
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, sources in (("live", LIVE), ("read", READ)):
        (tmp_path / "recipes" / f"{name}.py").write_text(TRAIN.format(name=name, sources=sources))
    yield tmp_path / "recipes"
    torch.set_num_threads(before)


def test_recorded_features_train_the_draft_that_the_live_run_trains(recipes, capsys):
    alone = ["--set", "topology.engine.batch_size=1"]
    assert main(["compile", "recipes/read.py"]) == 1
    assert "Recorded.path is 'features'" in capsys.readouterr().err
    assert main(["run", "recipes/tiny_record.py", *alone]) == 0
    assert "recorded 96 documents, 4,132 tokens: " in capsys.readouterr().out
    held_out = ["name=heldout", "record.path=heldout", "record.features.source.path=data/tiny_heldout.jsonl"]
    assert main(["run", "recipes/tiny_record.py", *alone, *(w for text in held_out for w in ("--set", text))]) == 0
    assert main(["run", "recipes/read.py"]) == 0
    assert main(["run", "recipes/live.py"]) == 0
    live, read = (load_file(f"runs/{name}/checkpoints/latest/draft.safetensors") for name in ("live", "read"))
    assert live.keys() == read.keys()
    assert all(torch.equal(live[name], read[name]) for name in live)
    assert main(["data", "check", "recipes/read.py", "--show", "1"]) == 0
    assert "features: 96 rows, 96 kept, 0 dropped" in capsys.readouterr().out
    assert main(["eval", "runs/read", "--prompts", "recipes/data/tiny_heldout.jsonl", "--limit", "2"]) == 0
    assert main(["export", "runs/read", "--to", "hf", "--out", "hf"]) == 0


def test_a_saved_plan_records_as_the_recipe_does(recipes, capsys):
    assert main(["compile", "recipes/tiny_record.py", "--out", "plan.json", "--graph", "plan.svg"]) == 0
    assert main(["run", "plan.json"]) == 0
    assert (recipes / "features" / "manifest.json").is_file()
    assert main(["run", "recipes/tiny_record.py", "--set", "record.features.policy.dtype=bfloat16"]) == 1
    said = capsys.readouterr().err
    assert "holds features of other settings" in said
    assert "dtype: float32 -> bfloat16" in said


def test_the_data_of_a_recording_is_shown_before_it_is_made(recipes, capsys):
    assert main(["data", "check", "recipes/tiny_record.py"]) == 0
    assert "data/tiny_prompts.jsonl: 96 rows, 96 kept" in capsys.readouterr().out
    assert main(["data", "vocab", "recipes/tiny_record.py"]) == 1
    assert "tiny-record records and trains no draft" in capsys.readouterr().err
