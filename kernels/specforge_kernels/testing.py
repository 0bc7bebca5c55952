"""In: a test of kernels. Out: the surroundings it runs in: Triton's interpreter, memory full of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def mend_interpreter() -> None:
    """Triton 3.6's interpreter cannot use a loaded scalar as a loop bound with numpy 2.4: arrays of one element."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:  # type: ignore[no-untyped-def]
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


@contextmanager
def poisoned() -> Iterator[None]:
    """What torch.empty and its like give is full of NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(1).isnan()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
