"""In: a target. Out: `fingerprint` of its weight files, which tells one fine-tune from another and reads little."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specforge.runtime.target import find_folder
from specforge.settings import TargetSettings

END_BYTES = 4 * 2**20


def fingerprint(settings: TargetSettings, base: Path) -> str:
    """sha256 (hex) over name, size, and both ends of each weight file; "" for random weights, which the seed tells.

    Raises ValueError where the weights are not here.
    """
    if settings.random_seed is not None:
        return ""
    digest = hashlib.sha256()
    for path in sorted(find_folder(settings, base).glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(END_BYTES))
            file.seek(max(0, size - END_BYTES))
            digest.update(file.read(END_BYTES))
    return digest.hexdigest()
