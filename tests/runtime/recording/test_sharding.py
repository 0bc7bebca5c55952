"""In: lengths of documents. Out: which of them share a shard: whole capture batches, in file order."""

import pytest

from specforge.runtime.recording.sharding import shards

pytestmark = pytest.mark.cpu


def test_shards_are_whole_capture_batches_in_file_order():
    found = shards([5, 5, 5, 5, 5, 5, 5], batch_documents=2, bytes_per_token=4, shard_bytes=60)
    assert [shard.batches for shard in found] == [((0, 1), (2, 3)), ((4, 5), (6,))]
    assert [shard.documents for shard in found] == [(0, 1, 2, 3), (4, 5, 6)]


def test_a_shard_ends_where_it_reaches_its_size():
    found = shards([10, 1, 1, 10], batch_documents=1, bytes_per_token=1, shard_bytes=10)
    assert [shard.documents for shard in found] == [(0,), (1, 2, 3)]


def test_few_documents_are_one_shard():
    assert [shard.documents for shard in shards([3, 4], 8, 1)] == [(0, 1)]
