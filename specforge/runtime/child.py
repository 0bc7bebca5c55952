"""In: the assignment of a process that a run started. Out: its exit status; it never outlives the run.

0: done. 1: a fault, the last lines of standard error say which. 75: another process of the run is gone, and that one
has the cause. 130: interrupted.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from pathlib import Path

from specforge.runtime.assignment import read_assignment
from specforge.runtime.control.peer import PeerGone

MAINS = {
    "controller": "specforge.runtime.control.controller_process",
    "server": "specforge.runtime.capture.server",
    "worker": "specforge.runtime.capture.worker",
    "trainer": "specforge.runtime.executor.trainer_process",
}
FAULT = 1
PEER_GONE = 75
INTERRUPTED = 130
PR_SET_PDEATHSIG = 1


def child(file: Path) -> int:
    """Do what the assignment in `file` says. Returns the exit status."""
    assignment = read_assignment(file)
    # before the seconds that importing torch takes: whoever started this process may end meanwhile
    end_with(assignment.parent)
    try:
        status: int = importlib.import_module(MAINS[assignment.kind]).main(assignment)
    except KeyboardInterrupt:
        return INTERRUPTED
    except PeerGone as error:
        print(error, file=sys.stderr)
        return PEER_GONE
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return FAULT
    return status


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        sys.exit(PEER_GONE)  # it ended before this one asked


if __name__ == "__main__":
    sys.exit(child(Path(sys.argv[1])))
