"""In: recipes/data. Out: checks that the shipped files are what their README says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.prompts import prompt

pytestmark = pytest.mark.null

FOLDER = Path(__file__).parents[3] / "recipes" / "data"


def rows(name):
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def test_the_tiny_files_are_the_scripts_output(tmp_path):
    subprocess.run([sys.executable, "-I", FOLDER / "make_tiny.py", tmp_path], check=True)
    made = sorted(p.name for p in tmp_path.iterdir())
    assert made == ["tiny_heldout.jsonl", "tiny_prompts.jsonl"]
    for name in made:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize(("name", "count"), [("tiny_prompts.jsonl", 96), ("tiny_heldout.jsonl", 16)])
def test_tiny_rows(name, count):
    assert len(rows(name)) == count
    for row in rows(name):
        ids, mask = prompt(row, 256)
        assert 24 <= len(ids) <= 64
        assert 6 <= mask.argmax() <= 10
        assert mask[mask.argmax() :].all()


@pytest.mark.parametrize(("name", "count"), [("smollm2_chats.jsonl", 300), ("smollm2_heldout.jsonl", 40)])
def test_chat_rows(name, count):
    assert len(rows(name)) == count
    assert len({row["id"] for row in rows(name)}) == count
    for row in rows(name):
        assert set(row) == {"id", "conversations", "finished"}
        conversation(row)


def test_no_first_question_is_both_trained_and_held_out():
    first = [
        {row["conversations"][0]["content"] for row in rows(n)}
        for n in ("smollm2_chats.jsonl", "smollm2_heldout.jsonl")
    ]
    assert not first[0] & first[1]
