"""In: the lengths of documents. Out: `shards`: which of them share a shard, the same at every start of a recording."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from specforge.runtime.data.order import chunks

SHARD_BYTES = 512 * 2**20


@attrs.frozen
class Shard:
    """A shard's capture batches in file order; each is one forward of the target."""

    batches: tuple[tuple[int, ...], ...]

    @property
    def documents(self) -> tuple[int, ...]:
        return tuple(document for batch in self.batches for document in batch)


def shards(
    lengths: Sequence[int], batch_documents: int, bytes_per_token: int, shard_bytes: int = SHARD_BYTES
) -> tuple[Shard, ...]:
    """Whole capture batches in file order, as many as reach `shard_bytes`: so a resumed recording redoes whole shards
    and every document is captured in the same company.
    """
    found: list[Shard] = []
    open_batches: list[tuple[int, ...]] = []
    held = 0
    for batch in chunks(tuple(range(len(lengths))), batch_documents):
        open_batches.append(batch)
        held += sum(lengths[document] for document in batch) * bytes_per_token
        if held >= shard_bytes:
            found.append(Shard(tuple(open_batches)))
            open_batches, held = [], 0
    return (*found, Shard(tuple(open_batches))) if open_batches else tuple(found)
