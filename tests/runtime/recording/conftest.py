"""In: nothing. Out: `site`: a folder with a toy target and rows, and its recipes compiled: recordings and trainings."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import attrs
import pytest
import torch
from rich.console import Console

from specforge.compiler import compile, load
from specforge.runtime.recording.record import record

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_parameters": ROPE,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "dtype": "float32",
}
HEAD = """
from specforge.dsl import *
target = Target("toy", config="config.json", random_weights=True)
policy = Policy(layers=[1, 2, 3])
"""
RECORD = """
recipe = Recipe(name={name!r}, record=Record(Capture({source}, target, {policy}), {path!r}{more}), topology={topology})
"""
TRAIN = """
recipe = Recipe(
    name={name!r},
    train=Train(Capture({source}, target, policy), Eagle3(ttt_length=2), draft=Draft(vocab_size=40), {batch},
                learning_rate=1e-2, epochs=2, log_every=1{more}),
    topology={topology},
    evaluate=[Evaluate({heldout}, every=4, batch_size=3)],
    outputs=[Checkpoint(every=3)],
)
"""
ONE = "Colocated(Transformers(batch_size=1))"


@attrs.frozen
class Site:
    """Recipes of one folder."""

    base: Path

    def compiled(self, text, **fields):
        path = self.base / f"{fields['name']}.py"
        path.write_text(HEAD + text.format(**fields))
        return compile(load(path))

    def recording(self, name, source, **changed):
        fields = {"name": name, "source": source, "policy": "policy", "path": name, "more": "", "topology": ONE}
        return self.compiled(RECORD, **{**fields, **changed})

    def training(self, name, source, heldout, **changed):
        fields = {
            "name": name,
            "source": source,
            "heldout": heldout,
            "topology": ONE,
            "more": "",
            "batch": "batch_size=2",
        }
        return self.compiled(TRAIN, **{**fields, **changed})

    def record(self, plan, **options):
        text = io.StringIO()
        return record(plan, Console(file=text, width=1000), **options), text.getvalue()


def rows(path, count, seed):
    chance = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            length = chance.randrange(4, 20)
            row = {"input_ids": [chance.randrange(96) for _ in range(length)], "loss_mask": [0] + [1] * (length - 1)}
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rows(tmp_path / "train.jsonl", 12, 1)
    rows(tmp_path / "heldout.jsonl", 5, 2)
    yield Site(tmp_path)
    torch.set_num_threads(before)
