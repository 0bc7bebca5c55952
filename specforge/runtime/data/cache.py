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

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.prepared import Prepared, read_prepared, to_bytes
from specforge.runtime.data.source import prepare
from specforge.runtime.writing import writing
from specforge.settings import SourceSettings

FORMAT = 1  # raise it with any change of code that changes tokens, masks or what is dropped


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
        inputs = {
            "format": FORMAT,
            "file": _file_digest(self.base / source.path),
            "source": {k: v for k, v in attrs.asdict(source).items() if k not in ("path", "chat_template", "strict")},
            "tokenizer": self._tokenizer() if source.kind == "conversations" else None,
            "vocab_size": self.vocab_size,
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

    @property
    def tokenizer_digest(self) -> str:
        """sha256 (hex) of the tokenizer alone; "" without one."""
        if self.tokenizer is None:
            return ""
        return hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()

    def _tokenizer(self) -> dict[str, Any] | None:
        if self.tokenizer is None:
            return None
        return {
            "content": self.tokenizer.backend_tokenizer.to_str(),
            "template": ChatTemplate(self.tokenizer, self.source.chat_template).text,
            "special": {k: str(v) for k, v in self.tokenizer.special_tokens_map.items()},
            "versions": [tokenizers.__version__, transformers.__version__],
        }


def prepared(preparation: Preparation, folder: Path) -> Prepared:
    """`prepare`, kept in `folder` as KEY.safetensors (what is read again) and KEY.json (the report, for people).

    Files are written whole or not at all, so any number of runs may share a folder. A file that cannot be read is made
    anew. Raises what `prepare` raises; nothing is kept of a source that raises. WriteError where it cannot be kept.
    """
    key = preparation.key
    path = folder / f"{key}.safetensors"
    found = _load(path)
    if found is not None and not (preparation.source.strict and found.report.dropped):
        return attrs.evolve(found, report=attrs.evolve(found.report, path=preparation.source.path))
    p = preparation
    made = prepare(p.source, p.base, p.tokenizer, p.vocab_size)
    with writing(f"the tokenised rows of {preparation.source.path}", folder):
        _write(folder / f"{key}.json", json.dumps(made.report.to_dict(), indent=1, ensure_ascii=False).encode())
        _write(path, to_bytes(made))
    return attrs.evolve(made, file=path)


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
