"""In: a `Controller`. Out: it served over HTTP, to whoever has the run's token; `/status` for people, `/metrics`.

Requests are answered one after another on one thread. An answer leaves when the ledger has it on disk; the changes of
all requests of one turn of the event loop share a commit. Whoever waits, waits in a long poll with a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from specforge.runtime.control.controller import ControlError, Controller
from specforge.runtime.control.message import (
    Commit,
    CommitReply,
    Covered,
    Failed,
    LeaseReply,
    LeaseRequest,
    MessageError,
    Released,
    Status,
    Take,
    Taken,
    Turn,
    dump,
    load,
)

T = TypeVar("T")
Answer = Callable[[Request], Awaitable[Response]]
LONGEST_POLL_S = 30.0
# leases run out by the clock, and peers go away: nobody announces that
TICK_S = 0.25


class Service:
    """The routes over `controller`. `token`: what a request must carry as its bearer."""

    def __init__(self, controller: Controller, token: str) -> None:
        self._controller, self._token = controller, token
        self._changed = asyncio.Event()
        self._committing: asyncio.Future[None] | None = None

    def app(self) -> Starlette:
        """The ASGI application. Every route but /health asks for the token."""
        posts = {
            "/lease": self._lease,
            "/commit": self._commit,
            "/fail": self._fail,
            "/take": self._take,
            "/acknowledge": self._acknowledge,
            "/cover": self._cover,
        }
        gets = {"/status": self._status, "/metrics": self._metrics}
        return Starlette(
            routes=[
                Route("/health", health),
                *(Route(path, self._checked(answer), methods=["POST"]) for path, answer in posts.items()),
                *(Route(path, self._checked(answer)) for path, answer in gets.items()),
            ]
        )

    def _checked(self, answer: Answer) -> Answer:
        async def checked(request: Request) -> Response:
            if not authorised(request, self._token):
                return refused()
            try:
                return await answer(request)
            except ControlError as error:
                return JSONResponse({"error": str(error)}, 409)
            except MessageError as error:
                return JSONResponse({"error": str(error)}, 400)
            except (sqlite3.Error, OSError) as error:
                return JSONResponse({"error": f"the ledger cannot be written: {error}"}, 500)

        return checked

    async def _lease(self, request: Request) -> Response:
        asked = load(await request.body(), LeaseRequest)
        lease = await self._poll(request, lambda: self._controller.lease(asked.worker), asked.wait_s)
        await self._durable()
        return record(LeaseReply(lease))

    async def _commit(self, request: Request) -> Response:
        accepted = self._controller.commit(load(await request.body(), Commit))
        await self._durable()
        return record(CommitReply(accepted))

    async def _fail(self, request: Request) -> Response:
        self._controller.fail(load(await request.body(), Failed))
        await self._durable()
        return record(CommitReply(True))

    async def _take(self, request: Request) -> Response:
        asked = load(await request.body(), Take)
        last = Taken(False)

        def attempt() -> Taken | None:
            nonlocal last
            last = self._controller.take(asked.turn)
            return last if last.ready else None

        # a worker that waits for work learns what is awaited now
        first = attempt()
        self._announce()
        if first is None:
            await self._poll(request, attempt, asked.wait_s)
        await self._durable()
        return record(last)

    async def _acknowledge(self, request: Request) -> Response:
        released = self._controller.acknowledge(load(await request.body(), Turn))
        await self._durable()
        return record(Released(tuple(released)))

    async def _cover(self, request: Request) -> Response:
        released = self._controller.cover(load(await request.body(), Covered).step)
        await self._durable()
        return record(Released(tuple(released)))

    async def _status(self, _: Request) -> Response:
        return record(self._controller.status())

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(prometheus(self._controller.status()), media_type="text/plain; version=0.0.4")

    async def _poll(self, request: Request, attempt: Callable[[], T | None], wait_s: float) -> T | None:
        """What `attempt` gives, tried again at every change, for `wait_s` seconds or while somebody waits for it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait_s, LONGEST_POLL_S)
        while True:
            if await request.is_disconnected():
                return None
            changed = self._changed
            found = attempt()
            left = end - loop.time()
            if found is not None or left <= 0:
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, TICK_S))

    async def _durable(self) -> None:
        """Wait for the commit that holds this request's changes, and tell those who wait for them."""
        if self._committing is None:
            loop = asyncio.get_running_loop()
            self._committing = loop.create_future()
            loop.call_soon(self._commit_all, self._committing)
        await asyncio.shield(self._committing)

    def _commit_all(self, committing: asyncio.Future[None]) -> None:
        self._committing = None
        try:
            self._controller.ledger.commit()
        except Exception as error:
            committing.set_exception(error)
        else:
            committing.set_result(None)
            self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def health(_: Request) -> Response:
    """The service answers requests."""
    return PlainTextResponse("ok\n")


def authorised(request: Request, token: str) -> bool:
    """Whether a request carries the run's token."""
    return hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode())


def refused() -> Response:
    """The answer to a request without the token."""
    return JSONResponse({"error": "this needs the run's token"}, 401)


def record(found: Any) -> Response:
    """A record as the body of an answer."""
    return Response(dump(found), media_type="application/json")


def prometheus(status: Status) -> str:
    """`status` in Prometheus' text format."""
    samples = [f'specforge_samples{{state="{state}"}} {count}' for state, count in status.samples.items()]
    numbers = {
        "specforge_next_step": ("gauge", status.next_step),
        "specforge_covered_step": ("gauge", status.covered_step),
        "specforge_total_steps": ("gauge", status.total_steps),
        "specforge_resident_bytes": ("gauge", status.resident_bytes),
        "specforge_leases": ("gauge", len(status.leases)),
        "specforge_captured_total": ("counter", status.captured),
        "specforge_holes_total": ("counter", status.holes),
        "specforge_retries_total": ("counter", status.retries),
        "specforge_failed": ("gauge", int(bool(status.failure))),
    }
    lines = ["# TYPE specforge_samples gauge", *samples]
    for name, (kind, value) in numbers.items():
        lines += [f"# TYPE {name} {kind}", f"{name} {json.dumps(value)}"]
    return "\n".join(lines) + "\n"
