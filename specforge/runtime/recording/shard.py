"""In: documents with their features. Out: a shard file of a recording, and its rows back. A file there is whole.

Legend: R tokens of all documents of a shard, D its documents, C captured width, H target hidden size. A shard holds
`tokens` int32 [R], `loss_mask` bool [R], `lengths` and `rows` int64 [D], `aux` [R, C] and, where it was captured,
`last` [R, H]; documents lie end to end in file order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specforge.recording import Conditions, Missing, RecordingError, ShardEntry, conditions_text, read_conditions
from specforge.runtime.checkpoint.save import sync
from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document
from specforge.runtime.writing import writing

# one entry: safetensors writes several in any order, and equal recordings are to be equal files
HELD = "recording"


@attrs.frozen(eq=False)
class Recorded:
    """A document with its features; it was row `row` of the source."""

    document: Document
    row: int
    features: Features


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.safetensors"


def write_shard(
    path: Path, conditions: Conditions, inside: Sequence[Recorded], missing: Sequence[Missing]
) -> ShardEntry:
    """Write, sync and rename. A shard may hold no documents, where all of its rows are missing.

    Raises WriteError where the disk is full: nothing is left then.
    """
    lengths = [len(one.document.tokens) for one in inside]
    width, dtype = len(conditions.layers) * conditions.hidden_size, getattr(torch, conditions.dtype)
    tensors = {
        "tokens": torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *(one.document.tokens for one in inside)])),
        "loss_mask": torch.from_numpy(
            np.concatenate([np.zeros(0, np.bool_), *(one.document.loss_mask for one in inside)])
        ),
        "lengths": torch.tensor(lengths, dtype=torch.int64),
        "rows": torch.tensor([one.row for one in inside], dtype=torch.int64),
        "aux": torch.cat([torch.empty(0, width, dtype=dtype), *(one.features.aux_TC.cpu() for one in inside)]),
    }
    if conditions.last_hidden:
        empty = torch.empty(0, conditions.hidden_size, dtype=dtype)
        tensors["last"] = torch.cat([empty, *(one.features.last_TH.cpu() for one in inside)])
    held = {"conditions": conditions_text(conditions), "missing": [attrs.astuple(one) for one in missing]}
    temporary = path.with_name(f".{path.name}")
    with writing(path.name, path.parent, half=temporary):
        save_file(tensors, temporary, {HELD: json.dumps(held)})
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    return read_entry(path)


def read_shard_conditions(path: Path) -> Conditions:
    """What a shard was recorded with. Raises RecordingError where it is no shard."""
    return read_conditions(_held(path)["conditions"], path)


def read_entry(path: Path) -> ShardEntry:
    """What a manifest says of a shard, from the shard itself. Raises RecordingError where it is none."""
    held = _held(path)
    tokens_R, mask_R, lengths_D, _ = read_documents(path)
    starts = np.cumsum(lengths_D) - lengths_D
    without_last = mask_R.copy()
    without_last[(starts + lengths_D - 1).astype(np.int64)] = False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ShardEntry(
        file=path.name,
        bytes=path.stat().st_size,
        sha256=digest,
        documents=len(lengths_D),
        tokens=len(tokens_R),
        supervised=int(without_last.sum()),
        longest=int(lengths_D.max(initial=0)),
        missing=tuple(Missing(row, reason) for row, reason in held["missing"]),
    )


def read_documents(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`tokens`, `loss_mask`, `lengths` and `rows` of a shard. Raises RecordingError where it is none."""
    try:
        with safe_open(path, framework="numpy") as file:
            tokens, mask, lengths, rows = (file.get_tensor(name) for name in ("tokens", "loss_mask", "lengths", "rows"))
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    return tokens, mask, lengths, rows


def read_features(path: Path, spans: Sequence[tuple[int, int]]) -> list[Features]:
    """The features of rows [start, end) of a shard, for each span; only these rows are read.

    `last_TH` has no columns where no last hidden state was recorded. Raises RecordingError where it is no shard.
    """
    try:
        with safe_open(path, framework="pt") as file:
            aux_RC = file.get_slice("aux")
            last_RH = file.get_slice("last") if "last" in file.keys() else None  # noqa: SIM118 (no mapping)
            found = []
            for start, end in spans:
                aux_TC = aux_RC[start:end]
                last_TH = aux_TC[:, :0] if last_RH is None else last_RH[start:end]
                found.append(Features(aux_TC=aux_TC, last_TH=last_TH))
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    return found


def damaged(path: Path, error: Exception | str) -> RecordingError:
    """The error of a shard that cannot be read."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return RecordingError(f"{path} is no whole shard ({why}); remove it and run the recipe that records it again")


def _held(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            held: dict[str, Any] = json.loads((file.metadata() or {})[HELD])
    except KeyError:
        raise damaged(path, "it does not say what it holds") from None
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    return held
