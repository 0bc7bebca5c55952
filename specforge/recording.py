"""In: a folder of recorded features. Out: its `Manifest`: what was captured of which target, and its shards. No torch.

Layer id i is the OUTPUT of decoder layer i, counted from 0, before any norm; the last hidden state is after the final
norm; row t of a document belongs to its token t (nothing is shifted).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import cattrs

FORMAT = 1
MANIFEST = "manifest.json"


class RecordingError(ValueError):
    """A folder that holds no whole recording, or one of other settings."""


@attrs.frozen
class Conditions:
    """Everything that the recorded bits depend on. Shards of equal conditions belong together.

    `target` is the recipe's name of it, `seed` that of random weights (None: loaded ones), `config` the sha256 of its
    config.json. `source` is the digest of the documents: file, options, tokenizer; `tokenizer` that of the tokenizer
    alone ("" where rows came as token ids). `computed`: the dtype the target computed in; `dtype`: the stored one.
    `batch_documents`, `packed`: how documents went through the target together. `weights`: a fingerprint of the weight
    files ("" where it is not known, or they were drawn).
    """

    target: str
    seed: int | None
    config: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    layers: tuple[int, ...]
    last_hidden: bool
    dtype: str
    computed: str
    source: str
    tokenizer: str
    batch_documents: int
    packed: bool
    format: int = FORMAT
    aux_norm: str = "pre"
    last_norm: str = "post"
    shifted: bool = False
    weights: str = ""


@attrs.frozen
class Missing:
    """A row of the source that has no features, and why."""

    row: int
    reason: str


@attrs.frozen
class ShardEntry:
    """A file of the folder with its size, content and what it holds."""

    file: str
    bytes: int
    sha256: str
    documents: int
    tokens: int
    supervised: int
    longest: int
    missing: tuple[Missing, ...] = ()


@attrs.frozen
class Manifest:
    """A whole recording: it is written last. `origin`: the path of the source, for people."""

    conditions: Conditions
    origin: str
    shards: tuple[ShardEntry, ...]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def supervised(self) -> int:
        return sum(shard.supervised for shard in self.shards)

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return max((shard.longest for shard in self.shards), default=0)

    @property
    def missing(self) -> tuple[Missing, ...]:
        return tuple(missing for shard in self.shards for missing in shard.missing)


def manifest_text(manifest: Manifest) -> str:
    """The text of manifest.json; `read_manifest` gives an equal manifest back."""
    return json.dumps(CONVERTER.unstructure(manifest), indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises RecordingError where there is none that this version reads."""
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        made = body["conditions"]["format"]
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise RecordingError(f"{path} is no manifest of recorded features ({error!r})") from None
    if made != FORMAT:
        raise RecordingError(f"{path} has format {made}, and this specforge reads format {FORMAT}")
    found: Manifest = _structured(body, Manifest, path)
    return found


def conditions_text(conditions: Conditions) -> str:
    """One line of JSON, as a shard keeps it."""
    return json.dumps(CONVERTER.unstructure(conditions), ensure_ascii=False)


def read_conditions(text: str, path: Path) -> Conditions:
    """The conditions of `conditions_text`; `path`: where it was found, for the RecordingError."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise RecordingError(f"{path} does not say what it holds ({error})") from None
    found: Conditions = _structured(body, Conditions, path)
    return found


def differences(old: Conditions, new: Conditions) -> list[str]:
    """The fields that differ, as "name: old -> new"."""
    pairs = ((a.name, getattr(old, a.name), getattr(new, a.name)) for a in attrs.fields(Conditions))
    return [f"{name}: {_shown(one)} -> {_shown(other)}" for name, one, other in pairs if one != other]


def short_name(target: str) -> str:
    """The last part of a target's name: a folder may lie elsewhere on another machine."""
    return target.rstrip("/").rpartition("/")[2]


def _shown(value: Any) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def _structured(body: Any, kind: type[Any], path: Path) -> Any:
    try:
        return CONVERTER.structure(body, kind)
    except Exception as error:
        first = cattrs.transform_error(error)[0]
        raise RecordingError(f"{path} is no manifest of recorded features ({first})") from None


CONVERTER = cattrs.Converter(forbid_extra_keys=True)
