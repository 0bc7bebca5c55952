"""In: an ASGI application. Out: it served on the socket that the process was started with, until SIGTERM."""

from __future__ import annotations

import signal
import socket
from typing import Any

import uvicorn

KEEP_ALIVE_S = 24 * 3600


def serve(app: Any) -> None:
    """Serve on standard input: whoever started this process made it a listening socket, so its address is known.

    Connections made before wait in its backlog. SIGTERM ends it within about a second.
    """
    listening = socket.socket(fileno=0)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        # a connection that is closed as a request arrives would look like a process that ended
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    # uvicorn raises it again when it is done: the caller still has something to close
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listening])
