"""In: recipes of a toy Gemma 2 and a toy Granite. Out: whole runs; teacher and evaluation use the target's logits."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from specforge.compiler import compile, load
from specforge.runtime.decode.evaluate import EvalRequest, evaluate
from specforge.runtime.run import run

pytestmark = pytest.mark.cpu
DATA = Path(__file__).parents[2] / "recipes" / "data"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
GEMMA = SIZES | {"model_type": "gemma2", "sliding_window": 16, "query_pre_attn_scalar": 8}
GRANITE = SIZES | {"model_type": "granite", "embedding_multiplier": 6.0, "attention_multiplier": 0.35}
RECIPE = """from specforge.dsl import Capture, Draft, Eagle3, Prompts, Recipe, Target, Train
target = Target("toy", config="config.json", random_weights=True)
train = Train(Capture(Prompts("tiny_prompts.jsonl", max_length=32, max_rows=8), target), Eagle3(ttt_length=2),
    draft=Draft(vocab_size=128), batch_size=4, max_steps=2, log_every=1)
recipe = Recipe("toy", train)
"""


def trained(folder: Path, config: dict, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of a run in `folder`, of two steps."""
    folder.mkdir()
    shutil.copy(DATA / "tiny_prompts.jsonl", folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "recipe.py").write_text(RECIPE)
    monkeypatch.chdir(folder)
    run(compile(load(folder / "recipe.py")), Console(file=io.StringIO()))
    rows = [json.loads(line) for line in (folder / "runs/toy/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("config", [GEMMA | {"final_logit_softcapping": 5.0}, GRANITE | {"logits_scaling": 3.0}])
def test_a_run_evaluates_to_the_targets_own_text(tmp_path, monkeypatch, config):
    assert len(trained(tmp_path / "run", config, monkeypatch)) == 2
    checkpoint = tmp_path / "run" / "runs" / "toy"
    report = evaluate(EvalRequest(checkpoint, DATA / "tiny_heldout.jsonl", max_new_tokens=8, limit=3))
    assert report.acceptance.prompts == 3
    assert report.differences == ()


def test_the_cap_reaches_the_loss(tmp_path, monkeypatch):
    """The same target and draft, before any step: only the teacher differs."""
    configs = [GEMMA | {"final_logit_softcapping": cap} for cap in (None, 1.0)]
    losses = [trained(tmp_path / str(i), config, monkeypatch) for i, config in enumerate(configs)]
    assert losses[0][0] != pytest.approx(losses[1][0], rel=1e-3)
