"""In: os.environ, read nowhere else. Out: facts of this machine: where the caches are, who started us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"


def cache_folder() -> Path:
    """specforge's cache: $SPECFORGE_CACHE, else $XDG_CACHE_HOME/specforge, else ~/.cache/specforge."""
    return _folder("SPECFORGE_CACHE") or _user_cache() / "specforge"


def hugging_face_cache() -> Path:
    """The Hugging Face hub's cache: $HF_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in the user's cache."""
    home = _folder("HF_HOME") or _user_cache() / "huggingface"
    return _folder("HF_HUB_CACHE") or home / "hub"


def launched_ranks() -> int:
    """How many ranks a launcher such as torchrun says it started, this process among them; 1 without one."""
    value = os.environ.get("WORLD_SIZE", "1")
    return int(value) if value.isdigit() else 1


@contextmanager
def isolated_children() -> Iterator[None]:
    """Within the block, Python processes that start do not take a queue.py of the user's folder for the library's."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if before is not None:
            os.environ[SAFE_PATH] = before


def _user_cache() -> Path:
    return _folder("XDG_CACHE_HOME") or Path.home() / ".cache"


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "")
    return Path(value).expanduser() if value else None
