"""In: what is written, and where. Out: `writing`: a full disk is a message that names both, and no half file stays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class WriteError(ValueError):
    """Something could not be written. What stood there before stands."""


@contextmanager
def writing(what: str, path: Path, half: Path | None = None) -> Iterator[None]:
    """Within, whatever the file system refuses is a WriteError that names `what` and `path`.

    `half`: a file or folder that is being made under a temporary name; it is removed where the block does not end.
    """
    try:
        yield
    except BaseException as error:
        if half is not None:
            _remove(half)
        if not isinstance(error, OSError | SafetensorError):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise WriteError(
            f"{what} could not be written to {path}: {why}. Free space there or make it writable, or name another "
            "folder, then give the same command again; what was written before is untouched"
        ) from None


def _remove(half: Path) -> None:
    if half.is_dir():
        shutil.rmtree(half, ignore_errors=True)
    else:
        half.unlink(missing_ok=True)
