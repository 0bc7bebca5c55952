"""In: documents with features. Out: a shard's file: its rows back bit for bit, its entry, and what is no shard."""

import attrs
import numpy as np
import pytest
import torch

from specforge.recording import Conditions, Missing, RecordingError
from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document
from specforge.runtime.recording.shard import (
    Recorded,
    read_documents,
    read_entry,
    read_features,
    read_shard_conditions,
    write_shard,
)
from specforge.runtime.writing import WriteError

pytestmark = pytest.mark.cpu
CONDITIONS = Conditions(
    target="toy",
    seed=1,
    config="c" * 64,
    hidden_size=2,
    num_layers=5,
    vocab_size=96,
    layers=(1, 2, 3),
    last_hidden=True,
    dtype="bfloat16",
    computed="float32",
    source="s" * 64,
    tokenizer="",
    batch_documents=1,
    packed=True,
)


def document(index, length, row):
    chance = torch.Generator().manual_seed(index)
    features = Features(
        torch.randn(length, 6, generator=chance).bfloat16(), torch.randn(length, 2, generator=chance).bfloat16()
    )
    tokens = np.arange(length, dtype=np.int32) + index
    mask = np.arange(length) % 2 == 1
    return Recorded(Document(index, tokens, mask), row, features)


@pytest.fixture
def inside():
    return [document(0, 3, 1), document(1, 4, 3)]


def test_rows_come_back_bit_for_bit(tmp_path, inside):
    write_shard(tmp_path / "shard", CONDITIONS, inside, [Missing(2, "bad")])
    tokens, mask, lengths, rows = read_documents(tmp_path / "shard")
    assert tokens.tolist() == [0, 1, 2, 1, 2, 3, 4]
    assert mask.tolist() == [False, True, False, False, True, False, True]
    assert (lengths.tolist(), rows.tolist()) == ([3, 4], [1, 3])
    second, first = read_features(tmp_path / "shard", [(3, 7), (0, 3)])
    for found, one in ((first, inside[0]), (second, inside[1])):
        assert torch.equal(found.aux_TC, one.features.aux_TC)
        assert torch.equal(found.last_TH, one.features.last_TH)
        assert found.aux_TC.dtype == torch.bfloat16


def test_the_entry_counts_what_is_inside(tmp_path, inside):
    entry = write_shard(tmp_path / "shard", CONDITIONS, inside, [Missing(2, "bad")])
    assert (entry.documents, entry.tokens, entry.longest) == (2, 7, 4)
    assert entry.supervised == sum(one.document.supervised for one in inside) == 2
    assert entry.missing == (Missing(2, "bad"),)
    assert entry.bytes == (tmp_path / "shard").stat().st_size
    assert read_entry(tmp_path / "shard") == entry
    assert read_shard_conditions(tmp_path / "shard") == CONDITIONS


def test_a_shard_may_have_no_documents_and_no_last_hidden_state(tmp_path, inside):
    aux = attrs.evolve(CONDITIONS, last_hidden=False)
    assert write_shard(tmp_path / "none", aux, [], [Missing(1, "bad")]).documents == 0
    write_shard(tmp_path / "aux", aux, inside, [])
    (found,) = read_features(tmp_path / "aux", [(0, 3)])
    assert found.last_TH.shape == (3, 0)


def test_what_is_no_shard_is_named(tmp_path, inside):
    path = tmp_path / "shard"
    write_shard(path, CONDITIONS, inside, [])
    path.write_bytes(path.read_bytes()[:-5])
    for read in (read_entry, read_documents, lambda p: read_features(p, [(0, 1)])):
        with pytest.raises(RecordingError, match=r"shard is no whole shard .*remove it"):
            read(path)


def test_a_write_that_is_refused_leaves_nothing(tmp_path, inside):
    (tmp_path / "shard").mkdir()
    with pytest.raises(WriteError, match="shard could not be written"):
        write_shard(tmp_path / "shard", CONDITIONS, inside, [])
    assert [p.name for p in tmp_path.iterdir()] == ["shard"]
