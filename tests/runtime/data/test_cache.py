"""In: one preparation and every change of its inputs. Out: checks that the cache answers for equal inputs only."""

import json
from copy import deepcopy

import attrs
import pytest

from specforge.runtime.data import cache
from specforge.runtime.data.cache import Preparation
from specforge.runtime.writing import WriteError
from specforge.settings import SourceSettings

pytestmark = pytest.mark.cpu

TURNS = [{"role": "user", "content": "hi you"}, {"role": "assistant", "content": "ho"}]


@pytest.fixture
def preparation(write_rows, templates, tokenizer):
    path = write_rows([{"messages": TURNS}, {"messages": []}, {"messages": TURNS, "finished": [False]}])
    source = SourceSettings("conversations", path.name, 1000, None, templates["chatml"], False, False, False)
    return Preparation(source, path.parent, tokenizer, 300)


def assert_same(a, b):
    assert a.report == b.report
    assert a.rows == b.rows
    assert len(a.documents) == len(b.documents)
    for x, y in zip(a.documents, b.documents):
        assert x.index == y.index
        assert x.tokens.dtype == y.tokens.dtype
        assert x.loss_mask.dtype == y.loss_mask.dtype
        assert x.tokens.tolist() == y.tokens.tolist()
        assert x.loss_mask.tolist() == y.loss_mask.tolist()


def test_the_second_time_comes_from_disk_and_is_equal(preparation, tmp_path, monkeypatch):
    first = cache.prepared(preparation, tmp_path / "cache")
    names = sorted(p.name for p in (tmp_path / "cache").iterdir())
    assert names == [f"{preparation.key}.json", f"{preparation.key}.safetensors"]
    assert json.loads((tmp_path / "cache" / names[0]).read_text()) == first.report.to_dict()
    monkeypatch.setattr(cache, "prepare", None)  # whoever prepares now fails
    assert_same(cache.prepared(preparation, tmp_path / "cache"), first)


def test_a_moved_file_is_the_same_and_reported_by_its_new_name(preparation, tmp_path, monkeypatch):
    cache.prepared(preparation, tmp_path / "cache")
    (tmp_path / "other.jsonl").write_bytes((tmp_path / preparation.source.path).read_bytes())
    moved = attrs.evolve(preparation, source=attrs.evolve(preparation.source, path="other.jsonl"))
    monkeypatch.setattr(cache, "prepare", None)
    assert cache.prepared(moved, tmp_path / "cache").report.path == "other.jsonl"


def changed(preparation, what, templates, kinds):
    source = preparation.source
    if what == "file":
        path = preparation.base / source.path
        path.write_text(path.read_text().replace("hi you", "hi yoU"))
        return preparation
    if what == "tokenizer":
        return attrs.evolve(preparation, tokenizer=kinds["words"])
    if what == "post-processor":
        return attrs.evolve(preparation, tokenizer=kinds["trimmed"])
    if what == "vocab_size":
        return attrs.evolve(preparation, vocab_size=301)
    value = {
        "max_length": 50,
        "max_rows": 2,
        "chat_template": templates["marked"],
        "last_turn_only": True,
        "preformatted": True,
        "reply_header": "<|im_start|>assistant",
        "reply_end": "<|im_end|>",
    }[what]
    return attrs.evolve(preparation, source=attrs.evolve(source, **{what: value}))


CHANGES = [
    "file",
    "tokenizer",
    "post-processor",
    "vocab_size",
    "max_length",
    "max_rows",
    "chat_template",
    "last_turn_only",
    "preformatted",
    "reply_header",
    "reply_end",
]


@pytest.mark.parametrize("what", CHANGES)
def test_every_input_is_in_the_key(what, preparation, templates, tokenizers_by_kind):
    key = preparation.key
    assert preparation.key == key
    assert changed(preparation, what, templates, tokenizers_by_kind).key != key


def test_the_tokenizers_own_template_and_special_tokens_are_in_the_key(preparation, templates):
    own = attrs.evolve(preparation, source=attrs.evolve(preparation.source, chat_template=None))
    keys = set()
    for template, eos in (("chatml", "<|im_end|>"), ("marked", "<|im_end|>"), ("marked", "<|eot_id|>")):
        tokenizer = deepcopy(preparation.tokenizer)
        tokenizer.chat_template, tokenizer.eos_token = templates[template], eos
        keys.add(attrs.evolve(own, tokenizer=tokenizer).key)
    assert len(keys) == 3


def test_how_special_tokens_in_texts_are_read_is_in_the_key(preparation):
    tokenizer = deepcopy(preparation.tokenizer)
    tokenizer.split_special_tokens = not tokenizer.split_special_tokens
    other = attrs.evolve(preparation, tokenizer=tokenizer)
    assert other.key != preparation.key
    assert other.tokenizer_digest != preparation.tokenizer_digest


def test_the_kind_and_the_format_of_the_code_are_in_the_key(preparation, monkeypatch):
    prompts = attrs.evolve(preparation, source=attrs.evolve(preparation.source, kind="prompts"), tokenizer=None)
    assert prompts.key != preparation.key
    old = preparation.key
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    assert preparation.key != old


def test_strictness_is_not_in_the_key_and_a_kept_preparation_with_faults_does_not_hide_them(preparation, tmp_path):
    strict = attrs.evolve(preparation, source=attrs.evolve(preparation.source, strict=True))
    assert strict.key == preparation.key
    cache.prepared(preparation, tmp_path / "cache")
    with pytest.raises(ValueError, match="row 2: empty row"):
        cache.prepared(strict, tmp_path / "cache")


def test_a_strict_source_without_faults_comes_from_disk(preparation, write_rows, tmp_path, monkeypatch):
    write_rows([{"messages": TURNS}])
    first = cache.prepared(preparation, tmp_path / "cache")
    monkeypatch.setattr(cache, "prepare", None)
    strict = attrs.evolve(preparation, source=attrs.evolve(preparation.source, strict=True))
    assert_same(cache.prepared(strict, tmp_path / "cache"), first)


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_file_is_made_anew(damage, preparation, tmp_path):
    first = cache.prepared(preparation, tmp_path / "cache")
    stored = tmp_path / "cache" / f"{preparation.key}.safetensors"
    whole = stored.read_bytes()
    stored.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert_same(cache.prepared(preparation, tmp_path / "cache"), first)
    assert stored.read_bytes() == whole


def test_nothing_is_kept_of_a_source_that_raises_and_no_temporary_file_stays(preparation, tmp_path, monkeypatch):
    short = attrs.evolve(preparation, source=attrs.evolve(preparation.source, max_length=3))
    with pytest.raises(ValueError, match="all 3 rows were dropped"):
        cache.prepared(short, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()

    def fail(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.raises(WriteError, match=r"the tokenised rows of rows\.jsonl could not be written to .*: disk full\."):
        cache.prepared(preparation, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_file_is_told(preparation, tmp_path):
    gone = attrs.evolve(preparation, source=attrs.evolve(preparation.source, path="gone.jsonl"))
    with pytest.raises(ValueError, match=r"gone\.jsonl: cannot be read .* correct the path"):
        cache.prepared(gone, tmp_path / "cache")
