"""In: the command line of a process that a run started. Out: its exit status; it never outlives the run.

0: done. 1: a fault, the last lines of standard error say which. 75: another process of the run is gone, and that one
has the cause. 130: interrupted.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from specforge.runtime.assignment import Assignment, read_assignment
from specforge.runtime.control.peer import PeerGone

FAULT = 1
PEER_GONE = 75
INTERRUPTED = 130
PR_SET_PDEATHSIG = 1


def child(work: Callable[[Assignment], int]) -> int:
    """Run `work` with the assignment that the command line names. Returns the exit status."""
    assignment = read_assignment(Path(sys.argv[1]))
    end_with(assignment.parent)
    try:
        return work(assignment)
    except KeyboardInterrupt:
        return INTERRUPTED
    except PeerGone as error:
        print(error, file=sys.stderr)
        return PEER_GONE
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return FAULT


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        sys.exit(PEER_GONE)  # it ended before this one asked
