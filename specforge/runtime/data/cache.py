"""In: a source, its inputs and a folder. Out: what `prepare` gives, from disk where no input changed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import attrs
import tokenizers
import transformers
from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.mix import mix
from specforge.runtime.data.prepared import Prepared, read_prepared, to_bytes
from specforge.runtime.data.renderer import chat_template
from specforge.runtime.data.source import prepare
from specforge.runtime.writing import writing
from specforge.settings import SourceSettings

FORMAT = 3  # raise it with any change of code that changes tokens, masks or what is dropped


@attrs.frozen(eq=False)
class Preparation:
    """Everything that a preparation depends on; the arguments of `prepare`."""

    source: SourceSettings
    base: Path
    tokenizer: PreTrainedTokenizerBase | None
    vocab_size: int

    @property
    def key(self) -> str:
        """sha256 (hex) of whatever changes tokens: the file's content (not its name), settings, tokenizer, template."""
        source = self.source
        if source.parts:
            keys = [part.key for part in self.parts]
            return _digest_of({"format": FORMAT, "parts": keys, "weights": source.weights, "seed": source.seed})
        inputs = {
            "format": FORMAT,
            "file": _file_digest(self.base / source.path),
            "source": {k: v for k, v in attrs.asdict(source).items() if k not in ("path", "chat_template", "strict")},
            "tokenizer": self._tokenizer() if source.kind == "conversations" else None,
            "vocab_size": self.vocab_size,
        }
        return _digest_of(inputs)

    @property
    def parts(self) -> tuple[Preparation, ...]:
        """The preparations of what a mix mixes."""
        return tuple(attrs.evolve(self, source=part) for part in self.source.parts)

    @property
    def tokenizer_digest(self) -> str:
        """sha256 (hex) of the tokenizer alone; "" without one."""
        if self.tokenizer is None:
            return ""
        split = b"split" if getattr(self.tokenizer, "split_special_tokens", False) else b""
        return hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode() + split).hexdigest()

    def _tokenizer(self) -> dict[str, Any] | None:
        if self.tokenizer is None:
            return None
        return {
            "content": self.tokenizer.backend_tokenizer.to_str(),
            "template": chat_template(self.source, self.tokenizer).text,
            "special": {k: str(v) for k, v in self.tokenizer.special_tokens_map.items()},
            "split_special_tokens": bool(getattr(self.tokenizer, "split_special_tokens", False)),
            "versions": [tokenizers.__version__, transformers.__version__],
        }


def prepared(preparation: Preparation, folder: Path) -> Prepared:
    """`prepare`, kept in `folder` as KEY.safetensors (what is read again) and KEY.json (the report, for people).

    Files are written whole or not at all, so any number of runs may share a folder. A file that cannot be read is made
    anew. Raises what `prepare` raises; nothing is kept of a source that raises. WriteError where it cannot be kept.
    """
    if preparation.source.parts:
        return _mixed(preparation, folder)
    key = preparation.key
    path = folder / f"{key}.safetensors"
    found = _load(path)
    if found is not None and not (preparation.source.strict and found.report.dropped):
        return attrs.evolve(found, report=attrs.evolve(found.report, path=preparation.source.path))
    p = preparation
    made = prepare(p.source, p.base, p.tokenizer, p.vocab_size)
    return _kept(made, path)


def _mixed(preparation: Preparation, folder: Path) -> Prepared:
    """A mix is quickly made of its parts, so it is made each time; its file is for the other processes of a run."""
    made = mix(preparation.source, [prepared(part, folder) for part in preparation.parts])
    return _kept(made, folder / f"{preparation.key}.safetensors")


def _kept(made: Prepared, path: Path) -> Prepared:
    with writing(f"the tokenised rows of {made.report.path}", path.parent):
        report = json.dumps(made.report.to_dict(), indent=1, ensure_ascii=False)
        _write(path.with_suffix(".json"), report.encode())
        _write(path, to_bytes(made))
    return attrs.evolve(made, file=path)


def _digest_of(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _load(path: Path) -> Prepared | None:
    try:
        return read_prepared(path)
    except ValueError:
        return None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); correct the path of the source") from None
