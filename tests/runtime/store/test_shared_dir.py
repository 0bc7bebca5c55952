"""In: tensors, and files damaged in every way. Out: the same bits or an error; what is left of the dead is removed."""

import os

import attrs
import pytest
import torch
from safetensors.torch import save_file

from specforge.runtime.control.message import TensorShape
from specforge.runtime.store.memory import Memory
from specforge.runtime.store.shared_dir import SharedDir
from specforge.runtime.store.shared_files import SharedFiles
from specforge.runtime.store.store import StoreError

pytestmark = pytest.mark.cpu


def tensors(seed=0, rows=5):
    chance = torch.Generator().manual_seed(seed)
    return {
        "aux_TC": torch.randn(rows, 12, generator=chance).to(torch.bfloat16),
        "last_TH": torch.randn(rows, 4, generator=chance),
    }


@pytest.fixture(params=["shared", "memory"])
def store(request, tmp_path):
    return SharedDir("features", tmp_path / "store") if request.param == "shared" else Memory("features")


def same(some, other):
    return some.keys() == other.keys() and all(
        some[name].dtype == other[name].dtype and torch.equal(some[name], other[name]) for name in some
    )


def test_what_is_got_is_what_was_put_bit_for_bit(store):
    reference = store.put("3.0.17", 2, tensors())
    assert (reference.store, reference.key, reference.generation) == ("features", "3.0.17", 2)
    assert reference.tensors == (TensorShape("aux_TC", "bfloat16", (5, 12)), TensorShape("last_TH", "float32", (5, 4)))
    assert same(store.get(reference), tensors())
    assert same(store.get(reference), tensors()), "reading leaves it there"
    assert store.resident_bytes() == reference.bytes >= 5 * (24 + 16)


def test_a_consumed_object_is_gone_and_removal_may_be_repeated(store):
    reference = store.put("0.0.1", 1, tensors())
    assert same(store.consume(reference), tensors())
    assert store.resident_bytes() == 0
    store.remove([reference])
    with pytest.raises(StoreError):
        store.get(reference)


def test_generations_are_objects_of_their_own(store):
    first, second = store.put("0.0.1", 1, tensors(1)), store.put("0.0.1", 2, tensors(2))
    assert same(store.get(first), tensors(1))
    store.remove([first])
    assert same(store.get(second), tensors(2))


def test_a_tensor_without_columns_comes_back(store):
    empty = {"aux_TC": torch.zeros(5, 3), "last_TH": torch.zeros(5, 0)}
    assert same(store.get(store.put("0.0.1", 1, empty)), empty)


def test_a_short_read_is_an_error_and_never_padded(tmp_path):
    store = SharedDir("features", tmp_path)
    reference = store.put("0.0.1", 1, tensors())
    path = SharedFiles(tmp_path).path("0.0.1", 1)
    os.truncate(path, reference.bytes - 1)
    with pytest.raises(StoreError, match=rf"has {reference.bytes - 1} bytes and {reference.bytes} were stored"):
        store.get(reference)
    path.write_bytes(b"x" * reference.bytes)
    with pytest.raises(StoreError, match="cannot be read"):
        store.get(reference)


@pytest.mark.parametrize(
    "change", [{"aux_TC": torch.zeros(5, 11)}, {"aux_TC": torch.zeros(5, 12)}, {"more": torch.zeros(1)}]
)
def test_other_tensors_than_the_reference_says_are_an_error(tmp_path, change):
    store = SharedDir("features", tmp_path)
    reference = store.put("0.0.1", 1, tensors())
    path = SharedFiles(tmp_path).path("0.0.1", 1)
    save_file({**tensors(), **change}, path)
    with pytest.raises(StoreError, match="its reference says"):
        store.get(attrs.evolve(reference, bytes=path.stat().st_size))
    with pytest.raises(StoreError, match="is in the store 'other', and this is 'features'"):
        store.get(attrs.evolve(reference, store="other"))


def test_nothing_half_written_is_ever_seen(tmp_path, monkeypatch):
    """A disk that is full at the rename: the error goes up, and no file stays."""
    store = SharedDir("features", tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("0.0.1", 1, tensors())
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_run_left_is_cleaned(tmp_path):
    store, files = SharedDir("features", tmp_path), SharedFiles(tmp_path)
    kept, other = store.put("0.0.1", 2, tensors()), store.put("0.0.2", 1, tensors())
    store.put("0.0.1", 1, tensors())
    (tmp_path / ".writing-abc").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    assert files.clean([kept]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.0.1.g2.safetensors", "notes.txt"]
    assert (files.holds(kept), files.holds(other)) == (True, False)
    os.truncate(files.path("0.0.1", 2), 3)
    assert not files.holds(kept)
    assert SharedFiles(tmp_path / "nowhere").clean() == 0
