"""In: manifests. Out: their text and back, their sums, and every text that is none, named."""

import json

import attrs
import pytest

from specforge.recording import (
    MANIFEST,
    Conditions,
    Manifest,
    Missing,
    RecordingError,
    ShardEntry,
    conditions_text,
    differences,
    manifest_text,
    read_conditions,
    read_manifest,
    short_name,
)

pytestmark = pytest.mark.null
CONDITIONS = Conditions(
    target="lab/model",
    seed=None,
    config="c" * 64,
    hidden_size=2,
    num_layers=5,
    vocab_size=96,
    layers=(1, 2, 3),
    last_hidden=True,
    dtype="bfloat16",
    computed="bfloat16",
    source="a" * 64,
    tokenizer="t" * 64,
    batch_documents=8,
    packed=False,
)
SHARDS = (
    ShardEntry("shard-000000.safetensors", 100, "d" * 64, 3, 30, 20, 12, (Missing(2, "bad"),)),
    ShardEntry("shard-000001.safetensors", 50, "e" * 64, 1, 15, 14, 15),
)
WHOLE = Manifest(CONDITIONS, "chats.jsonl", SHARDS)


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    (tmp_path / MANIFEST).write_text(manifest_text(WHOLE))
    assert read_manifest(tmp_path) == WHOLE
    assert (WHOLE.documents, WHOLE.tokens, WHOLE.supervised, WHOLE.longest) == (4, 45, 34, 15)
    assert WHOLE.missing == (Missing(2, "bad"),)
    assert read_conditions(conditions_text(CONDITIONS), tmp_path) == CONDITIONS


def test_the_conventions_of_the_features_are_written_out():
    said = json.loads(manifest_text(WHOLE))["conditions"]
    assert (said["aux_norm"], said["last_norm"], said["shifted"]) == ("pre", "post", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no manifest of recorded features"),
        ("[]", "is no manifest of recorded features"),
        ("{}", "is no manifest of recorded features"),
        (json.dumps({"conditions": {"format": 2}}), "has format 2, and this specforge reads format 1"),
        (json.dumps({"conditions": {"format": 1}}), "is no manifest of recorded features"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(RecordingError, match=message) as error:
        read_manifest(tmp_path)
    assert str(tmp_path / MANIFEST) in str(error.value)


def test_differences_are_named_with_both_values_digests_short():
    other = attrs.evolve(CONDITIONS, layers=(0, 1), source="b" * 64)
    assert differences(CONDITIONS, other) == [
        "layers: [1, 2, 3] -> [0, 1]",
        "source: aaaaaaaaaaaa -> bbbbbbbbbbbb",
    ]
    assert differences(CONDITIONS, CONDITIONS) == []


@pytest.mark.parametrize("name", ["models/x", "../models/x/", "x"])
def test_a_target_is_known_by_the_last_part_of_its_name(name):
    assert short_name(name) == "x"
