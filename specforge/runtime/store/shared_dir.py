"""In: tensors of a document. Out: `SharedDir`: one safetensors file per document and generation in a shared folder.

Files are not synced: after a crash what the ledger says is compared with what is there, and captured again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from specforge.runtime.control.message import Reference, TensorShape
from specforge.runtime.store.shared_files import WRITING, SharedFiles
from specforge.runtime.store.store import StoreError


class SharedDir:
    """A store called `name` in the folder `root`, which is made."""

    def __init__(self, name: str, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._name, self._files = name, SharedFiles(root)

    def put(self, key: str, generation: int, tensors: Mapping[str, torch.Tensor]) -> Reference:
        """Write and rename. Raises OSError where the disk is full; nothing is left then."""
        path = self._files.path(key, generation)
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        handle, temporary = tempfile.mkstemp(prefix=WRITING, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return Reference(self._name, key, generation, len(content), shapes(tensors))

    def get(self, reference: Reference) -> dict[str, torch.Tensor]:
        """Read the whole file. Raises StoreError where it is not what the reference says."""
        if reference.store != self._name:
            raise StoreError(f"{reference.key} is in the store {reference.store!r}, and this is {self._name!r}")
        path = self._files.path(reference.key, reference.generation)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise StoreError(f"{path} is not there; start the run again, it is captured again") from None
        if len(content) != reference.bytes:
            raise StoreError(
                f"{path} has {len(content)} bytes and {reference.bytes} were stored; is the disk full? Start the run "
                "again, it is captured again"
            )
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise StoreError(f"{path} cannot be read ({error}); start the run again, it is captured again") from None
        if sorted(shapes(tensors), key=_name) != sorted(reference.tensors, key=_name):
            raise StoreError(f"{path} holds {shapes(tensors)}, its reference says {reference.tensors}")
        return tensors

    def consume(self, reference: Reference) -> dict[str, torch.Tensor]:
        """`get`, then `remove`."""
        tensors = self.get(reference)
        self.remove([reference])
        return tensors

    def remove(self, references: Iterable[Reference]) -> None:
        """Objects that are not there are no error."""
        self._files.remove(references)

    def resident_bytes(self) -> int:
        """Bytes of all objects."""
        return self._files.resident_bytes()


def shapes(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorShape, ...]:
    """What a reference says of these tensors."""
    return tuple(
        TensorShape(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    )


def _name(shape: TensorShape) -> str:
    return shape.name
