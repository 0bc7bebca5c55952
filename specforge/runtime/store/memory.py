"""In: tensors of a document. Out: `Memory`: a store within one process, for features that never leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from specforge.runtime.control.message import Reference
from specforge.runtime.store.shared_dir import shapes
from specforge.runtime.store.store import StoreError


class Memory:
    """A store called `name`. Tensors are held as they are given, on their device."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[tuple[str, int], dict[str, torch.Tensor]] = {}

    def put(self, key: str, generation: int, tensors: Mapping[str, torch.Tensor]) -> Reference:
        """Hold these tensors."""
        self._held[key, generation] = dict(tensors)
        return Reference(self._name, key, generation, sum(t.nbytes for t in tensors.values()), shapes(tensors))

    def get(self, reference: Reference) -> dict[str, torch.Tensor]:
        """The tensors. Raises StoreError where they are not here."""
        try:
            return dict(self._held[reference.key, reference.generation])
        except KeyError:
            raise StoreError(f"{reference.key} generation {reference.generation} is not in {self._name!r}") from None

    def consume(self, reference: Reference) -> dict[str, torch.Tensor]:
        """`get`, then `remove`."""
        tensors = self.get(reference)
        self.remove([reference])
        return tensors

    def remove(self, references: Iterable[Reference]) -> None:
        """Objects that are not there are no error."""
        for reference in references:
            self._held.pop((reference.key, reference.generation), None)

    def resident_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(tensor.nbytes for tensors in self._held.values() for tensor in tensors.values())
