"""In: how many ranks, and a function. Out: the function run in as many processes of this host, what rank 0 gave back.

torch's elastic launcher starts the processes, tells them of one another, and ends all of them when one dies. It runs in
a thread: signals stay with this process, which passes the first one on as a request and ends everything at the second.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import attrs
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from specforge.runtime.control.peer import PeerGone
from specforge.runtime.env import isolated_children
from specforge.runtime.train.interrupt import Interrupt, Stop
from specforge.runtime.train.parallel import PeerLost

# Forked from a server that has imported torch once but run nothing of it: no seconds of imports per rank.
START = "forkserver"
PRELOADED = ["specforge.runtime.executor.colocated", "transformers.models.auto.modeling_auto"]
POLL_S = 0.1
# How long a rank that lost another one waits to be ended, so that the other's end is the one that is told.
GRACE_S = 5.0
_REFUSED = "_Refused: "
_GONE = "_Gone: "

Entry = Callable[..., Any]


class RankDied(ValueError):
    """A rank ended without a word: killed by a signal, or gone with an exit status."""


class RankFailed(RuntimeError):
    """A rank failed with an error that no user made; holds its trace."""


class _Refused(Exception):
    """What a rank tells the user, on its way to the launching process."""


class _Gone(Exception):
    """Another process of the run is gone, on its way to the launching process."""


@attrs.frozen(eq=False)
class _Asked:
    """Whether the launching process was asked to stop."""

    event: Any

    @property
    def requested(self) -> bool:
        return bool(self.event.is_set())


def start_server() -> None:
    """Start the process that ranks are forked from, where it does not run: it imports while this one goes on."""
    multiprocessing.get_context(START).set_forkserver_preload(PRELOADED)
    # it inherits the mask, and ranks do: a terminal's Ctrl-C is this process's alone, which gets it a little later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with isolated_children():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def launch(ranks: int, entry: Entry, arguments: tuple[Any, ...]) -> Any:
    """`entry(stop, *arguments)` in `ranks` processes; returns what rank 0's gave. All of it has to be picklable.

    `stop.requested` becomes true at the first SIGINT or SIGTERM, at another moment on each rank: they have to agree. A
    second signal ends all ranks and raises KeyboardInterrupt. Raises ValueError with the text of a rank's own
    ValueError or OSError (a PeerGone stays one), RankDied where a rank was killed, RankFailed with the trace of any
    other error. Ranks end with this process. A script that comes here has its own start under
    `if __name__ == "__main__"`: ranks import it.
    """
    _quieten()
    start_server()
    context = multiprocessing.get_context(START)
    event, over, others = context.Event(), threading.Event(), set(multiprocessing.active_children())
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=POLL_S,
            start_method=START,
        )

        def run() -> None:
            try:
                outcome["values"] = elastic_launch(config, _rank)(entry, event, ranks, arguments)
            except BaseException as error:
                outcome["error"] = error
            finally:
                over.set()

        try:
            with Interrupt() as interrupt:
                threading.Thread(target=run, daemon=True).start()
                while not over.wait(POLL_S):
                    if interrupt.requested:
                        event.set()
        except KeyboardInterrupt:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
            over.wait(GRACE_S)
            raise
    if "error" in outcome:
        raise _cause(outcome["error"])
    return outcome["values"][0]


def _rank(entry: Entry, event: Any, ranks: int, arguments: tuple[Any, ...]) -> Any:
    """What every process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the launching process passes it on
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    stop: Stop = _Asked(event)
    try:
        return entry(stop, *arguments)
    except PeerGone as error:
        raise _Gone(str(error)) from error
    except ValueError as error:
        raise _Refused(str(error)) from error
    except OSError as error:
        raise _Refused(f"{error.filename or 'a file of the run'}: {error.strerror or error}") from error
    except PeerLost:
        time.sleep(GRACE_S)
        raise


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _cause(error: BaseException) -> BaseException:
    if not isinstance(error, ChildFailedError):
        return error
    rank, failure = error.get_first_failure()
    told = failure.message
    if isinstance(told, dict):
        if told["message"].startswith(_REFUSED):
            return ValueError(told["message"].removeprefix(_REFUSED))
        if told["message"].startswith(_GONE):
            return PeerGone(told["message"].removeprefix(_GONE))
        return RankFailed(f"rank {rank} failed:\n{told['extraInfo']['py_callstack']}")
    how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with status {failure.exitcode}"
    fix = "the last checkpoint stands: run it again to go on"
    if failure.exitcode == -signal.SIGKILL:
        fix = f"most often the machine ran out of memory (lower batch_size or pack_tokens); {fix}"
    return RankDied(f"rank {rank} (process {failure.pid}) {how}, and the run with it; {fix}")


def _quieten() -> None:
    """The launcher logs what this file says in its own words."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
