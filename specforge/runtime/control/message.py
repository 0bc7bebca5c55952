"""In: nothing. Out: the records that controller, workers, servers and trainer send one another. Never a tensor."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import attrs
import cattrs

from specforge.runtime.data.hole import Hole

T = TypeVar("T")


class MessageError(ValueError):
    """A body that is not the expected record."""


@attrs.frozen
class TensorShape:
    """One stored tensor: its name ("aux_TC"), dtype ("bfloat16") and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@attrs.frozen
class Reference:
    """Where a document's features are: `bytes` under `key` and `generation` in the store called `store`."""

    store: str
    key: str
    generation: int
    bytes: int
    tensors: tuple[TensorShape, ...]


@attrs.frozen
class Wanted:
    """A document of a capture batch. Without `key` it only keeps the others company: nothing is stored of it."""

    document: int
    tokens: tuple[int, ...]
    key: str = ""
    generation: int = 0


@attrs.frozen
class Lease:
    """A capture batch handed to a worker for `seconds`; after that it goes to another. `source`: see CaptureBatch."""

    id: str
    batch: str
    source: int
    seconds: float
    documents: tuple[Wanted, ...]


@attrs.frozen
class Captured:
    """What became of a wanted document: its reference, or (`fault`) why there is none and never will be."""

    key: str
    reference: Reference | None = None
    fault: str = ""


@attrs.frozen
class LeaseRequest:
    """A worker asks for work and waits up to `wait_s` for it."""

    worker: str
    wait_s: float


@attrs.frozen
class LeaseReply:
    """None: nothing to capture now; ask again."""

    lease: Lease | None


@attrs.frozen
class CaptureRequest:
    """What a worker sends to a capture server: the documents of one forward."""

    documents: tuple[Wanted, ...]


@attrs.frozen
class CaptureReply:
    """One entry for each document that was sent with a key."""

    captured: tuple[Captured, ...]


@attrs.frozen
class Commit:
    """A worker's results for its lease."""

    lease: str
    captured: tuple[Captured, ...]


@attrs.frozen
class CommitReply:
    """`accepted` False: the lease had run out and others have the work; these objects are to be discarded."""

    accepted: bool


@attrs.frozen
class Failed:
    """A worker could not capture its lease: `error` says why."""

    lease: str
    error: str


@attrs.frozen
class Turn:
    """What the trainer takes at once: slot `slot` of optimizer step `step` (see data/agenda.py)."""

    step: int
    slot: int = 0


@attrs.frozen
class Take:
    """The trainer asks for a turn and waits up to `wait_s` for all of it."""

    turn: Turn
    wait_s: float


@attrs.frozen
class Given:
    """A sample's document and where its features are."""

    document: int
    reference: Reference


@attrs.frozen
class Taken:
    """A turn. `ready` False: `missing` says what is waited for; else every sample is given or a hole."""

    ready: bool
    missing: str = ""
    given: tuple[Given, ...] = ()
    holes: tuple[Hole, ...] = ()


@attrs.frozen
class Covered:
    """A checkpoint holds everything up to optimizer step `step`."""

    step: int


@attrs.frozen
class Released:
    """Features that nobody needs any more: the trainer removes them from the store."""

    references: tuple[Reference, ...]


@attrs.frozen
class Status:
    """Where a run stands. `samples`: by state. `holes`: lost samples so far; `retries`: leases that came to nothing.

    `resident_bytes`: features in the store. `next_step`: the optimizer step that is taken or awaited next.
    """

    next_step: int
    covered_step: int
    total_steps: int
    samples: dict[str, int]
    holes: int
    retries: int
    captured: int
    resident_bytes: int
    leases: dict[str, str]
    failure: str = ""


CONVERTER = cattrs.Converter(forbid_extra_keys=True)


def dump(record: Any) -> str:
    """A record as JSON text."""
    return json.dumps(CONVERTER.unstructure(record))


def load(text: str | bytes, kind: type[T]) -> T:
    """A record of `kind` from `dump`'s text. Raises MessageError where the text is something else."""
    try:
        return CONVERTER.structure(json.loads(text), kind)
    except Exception as error:
        what = "; ".join(cattrs.transform_error(error)) if not isinstance(error, ValueError) else str(error)
        raise MessageError(f"not a {kind.__name__}: {what}; both ends must run the same specforge") from None
