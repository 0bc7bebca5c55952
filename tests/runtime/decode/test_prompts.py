"""In: files of rows in many forms. Out: the prompts they hold, and the reasons of those that hold none."""

import gzip
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.decode.prompts import Prompt, PromptFile, read_prompts

pytestmark = pytest.mark.cpu
WORDS = ["<s>", "</s>", "sys", "usr", "bot", "be", "kind", "hi", "bye", "?"]
TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'sys', 'user': 'usr', 'assistant': 'bot'}[m.role] }} {{ m.content }} "
    "{% endfor %}{% if add_generation_prompt %}bot{% endif %}"
)


@pytest.fixture
def template():
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="?")
    tokenizer.chat_template = TEMPLATE
    return lambda: ChatTemplate(tokenizer)


def _none():
    raise AssertionError("token ids need no chat template")


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _file(path, limit=None, positions=64):
    return PromptFile(path, limit, vocab_size=10, max_positions=positions)


def test_a_conversation_gives_its_first_user_turn_with_the_system_turn(tmp_path, template):
    turns = [("system", "be kind"), ("user", "hi"), ("assistant", "bye"), ("user", "bye")]
    rows = [
        {"messages": [{"role": r, "content": c} for r, c in turns]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "bye"}]},
        {"messages": [{"role": "user", "content": "bye"}]},
        {"system": "kind", "conversations": [{"from": "human", "value": "hi"}], "finished": [True, False]},
    ]
    prompts, skipped = read_prompts(_file(_write(tmp_path / "chats.jsonl", rows)), template)
    words = [" ".join(WORDS[i] for i in p.tokens) for p in prompts]
    assert words == ["sys be kind usr hi bot", "usr hi bot", "usr bye bot", "sys kind usr hi bot"]
    assert [p.row for p in prompts] == [1, 2, 3, 4]
    assert skipped == {}


def test_token_ids_end_where_supervision_begins(tmp_path):
    rows = [
        {"input_ids": [3, 4, 5, 6], "loss_mask": [0, 0, 1, 1]},
        {"input_ids": [3, 4, 5]},
        {"input_ids": [[7, 8, 9]], "loss_mask": [[0, 1, 1]]},
        {"input_ids": [[7, 8, 9]]},
        {"input_ids": [3, 4], "loss_mask": [0, 0]},
    ]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    prompts, _ = read_prompts(_file(path), _none)
    assert prompts == (
        Prompt(1, (3, 4)),
        Prompt(2, (3, 4, 5)),
        Prompt(3, (7,)),
        Prompt(4, (7, 8, 9)),
        Prompt(5, (3, 4)),
    )


def test_rows_without_a_prompt_are_counted_by_reason(tmp_path, template):
    rows = [
        {"input_ids": [1, 2], "loss_mask": [1, 1]},
        {"input_ids": [], "loss_mask": []},
        {"input_ids": [99]},
        {"input_ids": [1] * 8},
        {"messages": [{"role": "assistant", "content": "hi"}]},
        {"messages": []},
        ["hi"],
        {"input_ids": [1]},
    ]
    prompts, skipped = read_prompts(_file(_write(tmp_path / "rows.jsonl", rows), positions=8), template)
    assert prompts == (Prompt(8, (1,)),)
    assert skipped == {
        "no prompt before the first supervised token": 1,
        "empty row": 2,
        "token id outside the vocabulary": 1,
        "prompt too long": 1,
        "begins with assistant": 1,
        "row is not an object": 1,
    }


def test_limit_counts_rows(tmp_path):
    path = _write(tmp_path / "rows.jsonl", [{"input_ids": [i]} for i in range(1, 6)])
    assert [p.tokens for p in read_prompts(_file(path, limit=2), _none)[0]] == [(1,), (2,)]


def test_a_file_without_prompts_is_an_error_that_shows_a_row(tmp_path):
    path = _write(tmp_path / "rows.jsonl", [{"input_ids": [99]}])
    with pytest.raises(ValueError, match=r"of its 1 row none gives a prompt; row 1: token id outside"):
        read_prompts(_file(path), _none)
