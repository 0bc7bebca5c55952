"""In: small recipes. Out: what `specforge data` prints of their sources."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specforge.cli import main

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]
RECIPE = """
from specforge.dsl import Capture, Conversations, Draft, Eagle3, Evaluate, Export, Recipe, Target, Train
chats = Conversations("chats.jsonl", max_length=128, max_rows=ROWS)
train = Train(Capture(chats, Target("model")), Eagle3(), draft=Draft(vocab_size=9))
recipe = Recipe(
    name="small", train=train, evaluate=[Evaluate(Conversations("held.jsonl", max_length=128))], outputs=[Export("hf")]
)
"""
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER, REPLY = {"role": "user", "content": "hi you"}, {"role": "assistant", "content": "ho é. end"}


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> str:
    """A recipe of chats and a target folder with a byte-level tokenizer, in the current folder."""
    model = tmp_path / "model"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    config = json.loads((ROOT / "recipes/targets/tiny-llama.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    rows = [{"messages": [REPLY]}, {"messages": [USER, REPLY]}, {"messages": [USER, REPLY, USER, REPLY]}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held.jsonl").write_text(json.dumps(rows[1]) + "\n")
    (tmp_path / "recipe.py").write_text(RECIPE.replace("ROWS", "None"))
    monkeypatch.chdir(tmp_path)
    return "recipe.py"


def test_check_reports_every_source(recipe, capsys):
    assert main(["data", "check", recipe]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "chats.jsonl: 3 rows, 2 kept, 1 dropped"
    assert lines[2] == "  dropped 1: begins with assistant (row 1)"
    assert lines[3] == "held.jsonl: 1 row, 1 kept, 0 dropped"
    assert len(lines) == 5


def test_check_shows_documents_by_row_with_what_is_supervised_in_brackets(recipe, capsys):
    assert main(["data", "check", recipe, "--show", "1"]) == 0
    chats, held = capsys.readouterr().out.split("held.jsonl")
    begin = "<|im_start|>user\nhi you<|im_end|>\n<|im_start|>assistant\n«ho é. end<|im_end|>»\n"
    assert "\nrow 2: 37 tokens, 11 supervised\n" + begin in chats
    assert "row 3" not in chats
    assert "\nrow 1: 37 tokens, 11 supervised\n" + begin in held


def test_on_a_terminal_what_is_supervised_is_coloured(recipe, capsys, monkeypatch):
    monkeypatch.setattr(
        "specforge.runtime.inspection.Console", lambda: Console(force_terminal=True, color_system="standard", width=80)
    )
    assert main(["data", "check", recipe, "--show", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1;32mho é. end<|im_end|>\x1b[0m" in out
    assert "«" not in out


def test_what_check_tokenised_a_run_finds(recipe, tmp_path, monkeypatch, capsys):
    assert main(["data", "check", recipe]) == 0
    monkeypatch.setattr("specforge.runtime.data.cache.prepare", None)  # whoever prepares now fails
    assert main(["data", "check", recipe, "--show", "1"]) == 0
    assert len(list((tmp_path / "runs/small/prepared").glob("*.safetensors"))) == 2


def test_check_of_rows_that_are_all_dropped_fails_and_shows_why(recipe, capsys):
    assert main(["data", "check", recipe, "--set", "train.features.source.max_rows=1"]) == 1
    assert "specforge data: chats.jsonl: its only row was dropped" in capsys.readouterr().err


def test_check_refuses_a_negative_count(recipe, capsys):
    assert main(["data", "check", recipe, "--show", "-1"]) == 1
    assert "--show is -1" in capsys.readouterr().err


def test_vocab_tells_what_training_would_keep(recipe, capsys):
    assert main(["data", "vocab", recipe]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "chats.jsonl, 2 documents",
        "draft vocabulary: 9 of 300 ids, 90.91% of the replies' tokens",
        "  33 tokens in replies, 10 distinct ids",
    ]
    (missed,) = lines[4:]
    assert missed.split()[1:] == ["3x", "'<|im_end|>'"]


@pytest.mark.parametrize(("action", "said"), [(["check", "--show", "1"], "«49 5 9 61"), (["vocab"], "153 distinct")])
def test_a_target_without_tokenizer_shows_ids(action, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *action, str(ROOT / "recipes/tiny_eagle3.py")]) == 0
    assert said in capsys.readouterr().out


def test_a_document_of_a_mix_is_shown_with_its_file(recipe, tmp_path, capsys):
    parts = 'Mix([Conversations("held.jsonl", max_length=128), Conversations("more.jsonl", max_length=128)])'
    text = RECIPE.replace('Conversations("chats.jsonl", max_length=128, max_rows=ROWS)', parts)
    text = text.replace("Export,", "Export, Mix,").replace(
        'evaluate=[Evaluate(Conversations("held.jsonl", max_length=128))], ', ""
    )
    (tmp_path / "more.jsonl").write_text((tmp_path / "chats.jsonl").read_text())
    (tmp_path / recipe).write_text(text)
    assert main(["data", "check", recipe, "--show", "2"]) == 0
    out = capsys.readouterr().out
    assert "held.jsonl + more.jsonl: 3 documents an epoch" in out
    assert "\nrow 1 of held.jsonl: " in out
    assert "\nrow 2 of more.jsonl: " in out
    assert main(["data", "vocab", recipe]) == 0
    assert capsys.readouterr().out.startswith("held.jsonl + more.jsonl, 3 documents\n")


def test_a_tokenizer_without_a_template_needs_a_chat_family(recipe, tmp_path, capsys):
    assert main(["data", "check", recipe, "--show", "1"]) == 0
    own = capsys.readouterr().out
    (tmp_path / "model/chat_template.jinja").unlink()
    assert main(["data", "check", recipe]) == 1
    assert "the tokenizer has no chat template; give one" in capsys.readouterr().err
    text = (tmp_path / recipe).read_text().replace("max_length=128", "max_length=128, chat_family='qwen'")
    (tmp_path / recipe).write_text(text)
    assert main(["data", "check", recipe, "--show", "1"]) == 0
    assert capsys.readouterr().out == own
