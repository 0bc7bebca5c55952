"""In: a file of JSON Lines or one JSON array, plain or gzip. Out: its `Row`s, numbered, in file order."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

GZIP_MAGIC = b"\x1f\x8b"
SHOWN = 80


@attrs.frozen
class Row:
    """One row. `number` is its line in JSON Lines, or its place in a JSON array; both count from 1."""

    number: int
    value: Any


def read_rows(path: Path, max_rows: int | None = None) -> Iterator[Row]:
    """The first `max_rows` rows of `path` (None: all). "[" at the start means one array; blank lines are skipped.

    Raises ValueError with file:line and the beginning of the text where it is not JSON, not UTF-8 or not there.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            lines = enumerate(file, start=1)
            number, first = next(((n, text) for n, line in lines if (text := _without_mark(n, line)).strip()), (0, b""))
            if first.lstrip().startswith(b"["):
                rows = _array(path, number, first + file.read())
            else:
                rows = _lines(path, itertools.chain([(number, first)], lines))
            yield from itertools.islice(rows, max_rows)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; correct the path of the source") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: is a folder; a source is one file of JSON Lines or a JSON array") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: the gzip stream is broken ({error}); copy the file again") from None


def _without_mark(number: int, line: bytes) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _lines(path: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[Row]:
    return (Row(number, _parse(path, number, line)) for number, line in lines if line.strip())


def _array(path: Path, number: int, text: bytes) -> Iterator[Row]:
    return (Row(place, value) for place, value in enumerate(_parse(path, number, text), start=1))


def _parse(path: Path, number: int, text: bytes) -> Any:
    """The JSON value of `text`, which begins on line `number` of `path`."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        line = number + text.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line}: byte {error.start} is not UTF-8 ({text[error.start : error.start + 8]!r}); "
            "store the file as UTF-8"
        ) from None
    try:
        return json.loads(decoded)
    except json.JSONDecodeError as error:
        begin = decoded.rfind("\n", 0, error.pos) + 1
        shown = decoded[begin : begin + SHOWN].rstrip("\r\n").split("\n")[0]
        raise ValueError(
            f"{path}:{number + error.lineno - 1}: not JSON ({error.msg} at column {error.colno}); "
            f"the line begins {shown!r}; correct or remove it"
        ) from None
    except RecursionError:
        raise ValueError(f"{path}:{number}: the JSON is nested too deeply to read; correct or remove it") from None
