"""In: SIGINT and SIGTERM. Out: `Interrupt.requested`, to finish the current step and save; a second signal aborts."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(Protocol):
    """Whether a run was asked to stop."""

    @property
    def requested(self) -> bool: ...


class Interrupt:
    """Within the block, the first signal sets `requested` and the second raises KeyboardInterrupt at once.

    Outside the main thread, where Python installs no handlers, nothing is caught.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
