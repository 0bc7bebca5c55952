"""In: nothing. Out: `Store`, what every feature store can do; `StoreError`. No torch here, but for tensors by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from specforge.runtime.control.message import Reference

if TYPE_CHECKING:
    import torch


class StoreError(ValueError):
    """Features that are not there, or are not what their reference says."""


class Store(Protocol):
    """Features of documents: one object per document and generation, which is the attempt that captured it."""

    def put(self, key: str, generation: int, tensors: Mapping[str, torch.Tensor]) -> Reference:
        """Store these tensors. Readers see all of them or nothing."""
        ...

    def get(self, reference: Reference) -> dict[str, torch.Tensor]:
        """The tensors on the CPU, bit for bit. Raises StoreError for a missing object, a short read, another shape."""
        ...

    def consume(self, reference: Reference) -> dict[str, torch.Tensor]:
        """`get`, then `remove`."""
        ...

    def remove(self, references: Iterable[Reference]) -> None:
        """Objects that are not there are no error: removal may be repeated after a crash."""
        ...

    def resident_bytes(self) -> int:
        """Bytes of all objects."""
        ...
