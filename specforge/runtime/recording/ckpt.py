"""In: a folder of .ckpt files, one document each. Out: their documents and features, as a capture gives them; and back.

A file is a `torch.save`d dictionary: `input_ids` and `loss_mask` int64 [T], `aux_hidden_state` [1, T, C] (the layers
side by side) and `hidden_state` [1, T, H], the LAST hidden state, after the norm. Read by weights_only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from specforge.recording import MANIFEST, RecordingError
from specforge.runtime.capture.caught import Caught
from specforge.runtime.capture.finite import faults
from specforge.runtime.data.batch import Features
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.pack import Document
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.report import Report
from specforge.runtime.recording.reader import Reader, read_recording
from specforge.runtime.writing import writing
from specforge.settings import CkptSettings, Geometry

SUFFIXES = (".ckpt", ".ckpt.gz")
GROUP = 2000
IDS, MASK, AUX, LAST = "input_ids", "loss_mask", "aux_hidden_state", "hidden_state"
UNREADABLE = (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zlib.error, ValueError)


@attrs.frozen(eq=False)
class CkptFeatures:
    """The features of files, asked for as a capture is; `files[i]` holds document i."""

    files: tuple[Path, ...]
    settings: CkptSettings
    geometry: Geometry
    documents: int = 1

    def capture(self, prepared: Prepared, indices: Sequence[int]) -> Caught:
        """The features of these documents; those that are not finite are holes, which name their file."""
        found = {i: self._features(self.files[i], prepared.length(i)) for i in indices}
        wrong = zip(found, faults(list(found.values())), strict=True)
        return Caught(found, tuple(Hole(i, f"{self.files[i].name}: {fault}") for i, fault in wrong if fault))

    def _features(self, path: Path, length: int) -> Features:
        content, settings, hidden = _load(path), self.settings, self.geometry.hidden_size
        aux_TC = _rows(path, content, AUX, (length, len(settings.layers) * hidden), settings.dtype)
        if not settings.last_hidden:
            return Features(aux_TC, aux_TC[:, :0])
        return Features(aux_TC, _rows(path, content, LAST, (length, hidden), settings.dtype))


def read_ckpt(base: Path, settings: CkptSettings, geometry: Geometry) -> tuple[Prepared, CkptFeatures, str]:
    """The documents of all files below the folder, by name with numbers as numbers; their features; a digest of both
    names and tokens. Raises RecordingError that names the first file that is not as the settings say.
    """
    folder = base / settings.path
    paths = tuple(sorted((p for p in folder.rglob("*") if p.name.endswith(SUFFIXES)), key=_natural))
    if not paths:
        raise RecordingError(f"{folder} has no .ckpt file; correct the path of Ckpt")
    documents, digest = [], hashlib.sha256()
    for index, path in enumerate(paths):
        content = _load(path)
        ids_T, mask_T = (_integers(path, content, name) for name in (IDS, MASK))
        if len(ids_T) != len(mask_T) or not 1 <= len(ids_T) <= settings.max_length:
            raise RecordingError(
                f"{path}: {IDS} has {len(ids_T)} tokens and {MASK} {len(mask_T)}, and a document has as many of both, "
                f"at most max_length={settings.max_length}; correct the file, or raise Ckpt(max_length=...)"
            )
        if ids_T.min() < 0 or ids_T.max() >= geometry.vocab_size:
            raise RecordingError(
                f"{path}: token ids from {ids_T.min()} to {ids_T.max()}, and the target has {geometry.vocab_size}; "
                "name the target that these files were captured of"
            )
        digest.update(f"{path.relative_to(folder)} {len(ids_T)}\n".encode() + ids_T.tobytes() + mask_T.tobytes())
        documents.append(Document(index, ids_T.astype(np.int32), mask_T != 0))
    tokens, supervised = sum(len(d.tokens) for d in documents), sum(d.supervised for d in documents)
    report = Report(settings.path, len(paths), len(paths), (), tokens, supervised, 0)
    rows = tuple(range(1, len(paths) + 1))
    return Prepared(tuple(documents), rows, report), CkptFeatures(paths, settings, geometry), digest.hexdigest()


def write_ckpt(recording: Path, out: Path) -> int:
    """Write a recording as OUT/rows_0-2000/data_0.ckpt, ... Returns how many files there are.

    Raises RecordingError where there is no recording, it has no last hidden state, or OUT holds something already.
    """
    made, _ = read_recording(recording, str(recording))
    if out.exists() and any(out.iterdir()):
        raise RecordingError(f"{out} is not empty; name a new folder with --out")
    reader = Reader()
    for i, document in enumerate(made.documents):
        features = reader.capture(made, [i]).features[i]
        if not features.last_TH.shape[1]:
            raise RecordingError(
                f"{recording / MANIFEST} says that no last hidden state was recorded, and a .ckpt file has one; record "
                "with Policy(last_hidden=True)"
            )
        first = i // GROUP * GROUP
        path = out / f"rows_{first}-{first + GROUP}" / f"data_{i}.ckpt"
        content = {
            IDS: torch.from_numpy(document.tokens.astype(np.int64)),
            MASK: torch.from_numpy(document.loss_mask.astype(np.int64)),
            AUX: features.aux_TC[None].contiguous(),
            LAST: features.last_TH[None].contiguous(),
        }
        temporary = path.with_name(f".{path.name}.writing")
        with writing(path.name, path.parent, half=temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, temporary)
            os.replace(temporary, path)
    return len(made.documents)


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.name.endswith(".gz"):
            content: Any = torch.load(io.BytesIO(gzip.decompress(path.read_bytes())), "cpu", weights_only=True)
        else:
            content = torch.load(path, "cpu", weights_only=True, mmap=True)
    except UNREADABLE as error:
        raise RecordingError(
            f"{path} cannot be read as tensors ({_first(error)}); capture this row again, or take it out"
        ) from None
    names = sorted(content) if isinstance(content, dict) else []
    if not {IDS, MASK, AUX} <= set(names):
        raise RecordingError(f"{path} has {', '.join(map(str, names)) or 'no keys'}, and needs {IDS}, {MASK} and {AUX}")
    return dict(content)


def _first(error: Exception) -> str:
    """The first line of what torch or the system says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _integers(path: Path, content: dict[str, torch.Tensor], name: str) -> np.ndarray:
    value = content[name]
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or value.dtype != torch.int64:
        raise RecordingError(f"{path}: {name} is {_shape(value)}, and takes int64 [tokens]")
    return value.numpy().copy()


def _rows(path: Path, content: dict[str, torch.Tensor], name: str, shape: tuple[int, int], dtype: str) -> torch.Tensor:
    """A feature as [T, width] that owns its memory."""
    value: Any = content.get(name)
    if not isinstance(value, torch.Tensor) or tuple(value.shape) not in (shape, (1, *shape)):
        raise RecordingError(
            f"{path}: {name} is {_shape(value)}, and this target with these layers gives {[1, *shape]}; correct the "
            "layers of the policy, or name the target that was captured"
        )
    if value.dtype != getattr(torch, dtype):
        found = str(value.dtype).removeprefix("torch.")
        raise RecordingError(f"{path}: {name} is in {found}, and {dtype} is asked for; write Policy(dtype={found!r})")
    return value.reshape(shape).clone()


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "missing" if value is None else type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _natural(path: Path) -> list[tuple[int, str]]:
    """data_2 before data_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
