"""In: folders of recorded features. Out: their documents, and `Reader`: their features in place of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

from specforge.recording import MANIFEST, Manifest, RecordingError, read_manifest
from specforge.runtime.capture.caught import Caught
from specforge.runtime.capture.finite import faults
from specforge.runtime.data.batch import Features
from specforge.runtime.data.hole import Hole
from specforge.runtime.data.pack import Document
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.report import Dropped, Report
from specforge.runtime.recording.shard import damaged, read_documents, read_features


@attrs.frozen(eq=False)
class Recording:
    """Where each document's features lie: `shards[i]` is its file, rows `starts[i]` to `starts[i] + lengths[i]`."""

    shards: tuple[Path, ...]
    starts: np.ndarray
    lengths: np.ndarray


def read_recording(folder: Path, shown: str) -> tuple[Prepared, Recording]:
    """The documents of a whole recording, `Prepared.file` being its manifest, and where their features lie.

    `shown`: how messages name the folder. Raises RecordingError where a shard is not what the manifest says.
    """
    manifest = read_manifest(folder)
    documents: list[Document] = []
    rows: list[int] = []
    shards: list[Path] = []
    starts: list[int] = []
    for entry in manifest.shards:
        path = folder / entry.file
        tokens_R, mask_R, lengths_D, rows_D = read_documents(path)
        if (len(lengths_D), len(tokens_R)) != (entry.documents, entry.tokens) or lengths_D.sum() != len(tokens_R):
            raise damaged(path, f"it has {len(lengths_D)} documents, its manifest says {entry.documents}")
        ends = np.cumsum(lengths_D)
        for tokens_T, mask_T in zip(np.split(tokens_R, ends[:-1]), np.split(mask_R, ends[:-1])) if len(ends) else ():
            documents.append(Document(len(documents), tokens_T, mask_T))
        rows += rows_D.tolist()
        shards += [path] * len(lengths_D)
        starts += (ends - lengths_D).tolist()
    if not documents:
        raise RecordingError(f"{folder} holds no document: every row is missing; record other rows")
    made = Prepared(tuple(documents), tuple(rows), _report(manifest, shown), folder / MANIFEST)
    lengths = np.array([len(document.tokens) for document in documents], np.int64)
    return made, Recording(tuple(shards), np.array(starts, np.int64), lengths)


@attrs.define(eq=False)
class Reader:
    """Recorded features, asked for as a capture is. `documents`: how many are worth reading together."""

    documents: int = 1
    opened: dict[Path, Recording] = attrs.Factory(dict)

    def capture(self, prepared: Prepared, indices: Sequence[int]) -> Caught:
        """The features of these documents, on the host; those with features that are not finite are holes."""
        recording = self._recording(prepared)
        by_shard: dict[Path, list[int]] = {}
        for index in indices:
            by_shard.setdefault(recording.shards[index], []).append(index)
        found: dict[int, Features] = {}
        for path, some in by_shard.items():
            starts = recording.starts[some]
            spans = list(zip(starts.tolist(), (starts + recording.lengths[some]).tolist(), strict=True))
            found.update(zip(some, read_features(path, spans), strict=True))
        wrong = zip(found, faults(list(found.values())), strict=True)
        return Caught(found, tuple(Hole(document, fault) for document, fault in wrong if fault))

    def _recording(self, prepared: Prepared) -> Recording:
        assert prepared.file is not None, "a recording's documents know their manifest"
        folder = prepared.file.parent
        if folder not in self.opened:
            self.opened[folder] = read_recording(folder, prepared.report.path)[1]
        return self.opened[folder]


def _report(manifest: Manifest, shown: str) -> Report:
    missing = manifest.missing
    reasons: dict[str, list[int]] = {}
    for one in missing:
        reasons.setdefault(one.reason, []).append(one.row)
    return Report(
        path=shown,
        rows=manifest.documents + len(missing),
        kept=manifest.documents,
        dropped=tuple(Dropped(reason, len(rows), tuple(rows[:3]), "") for reason, rows in reasons.items()),
        tokens=manifest.tokens,
        supervised=manifest.supervised,
        truncated=0,
    )
