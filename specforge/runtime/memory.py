"""In: what is being done, and how to need less for it. Out: `memory`: a lack of memory is a message that says both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class MemoryShortage(ValueError):
    """The device, or the host, has too little memory for what was asked."""


@contextmanager
def memory(what: str, fix: str) -> Iterator[None]:
    """Within, an out-of-memory error of torch or Python is a MemoryShortage that says `what`, how much, and `fix`."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        said = str(error).strip().partition("\n")[0] or "the host has none left"
        raise MemoryShortage(f"out of memory while {what}: {said}\n{fix}") from None
