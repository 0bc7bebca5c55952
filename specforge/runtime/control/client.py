"""In: the address and token of a run's controller, or of a capture server. Out: `Client`, `ControlClient`: its calls.

Every call has a bound. What the other side refuses is a ControlError; that it is gone is a PeerGone.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import httpx

from specforge.runtime.control.message import (
    Captured,
    CaptureReply,
    CaptureRequest,
    Commit,
    CommitReply,
    Covered,
    Failed,
    Lease,
    LeaseReply,
    LeaseRequest,
    Reference,
    Released,
    Status,
    Take,
    Taken,
    Turn,
    Wanted,
    dump,
    load,
)
from specforge.runtime.control.peer import PeerGone, Refused, TooSlow

T = TypeVar("T")
POLL_S = 10.0
ANSWER_S = 60.0
CONNECT_S = 10.0


class Client:
    """Posts records to the service at `url`; `name` is what errors call it."""

    def __init__(self, name: str, url: str, token: str) -> None:
        self._name = name
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        # a proxy of the environment is not meant for this machine's own ports
        self._http = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=timeout, trust_env=False
        )

    def post(self, path: str, record: Any, kind: type[T], answer_s: float = ANSWER_S) -> T:
        """The answer, within `answer_s` seconds. Raises Refused, TooSlow or PeerGone."""
        timeout = httpx.Timeout(answer_s, connect=CONNECT_S)
        return self._answer(kind, "POST", path, content=dump(record), timeout=timeout)

    def get(self, path: str, kind: type[T]) -> T:
        """As `post`."""
        return self._answer(kind, "GET", path)

    def wait_ready(self, patience_s: float) -> None:
        """Wait until the other side answers at all: its port is open before it is ready. Raises TooSlow, PeerGone."""
        self._answer(None, "GET", "/health", timeout=httpx.Timeout(patience_s, connect=CONNECT_S))

    def close(self) -> None:
        self._http.close()

    def _answer(self, kind: type[T] | None, method: str, path: str, **sent: Any) -> Any:
        try:
            answer = self._http.request(method, path, **sent)
        except httpx.TimeoutException:
            raise TooSlow(f"{self._name} at {self._http.base_url} did not answer {path} in time") from None
        except httpx.TransportError as error:
            raise PeerGone(f"{self._name} at {self._http.base_url} is gone: {error}") from None
        if answer.status_code != httpx.codes.OK:
            raise Refused(_reason(answer, f"{self._name} {path}"))
        return None if kind is None else load(answer.content, kind)


class ControlClient:
    """The controller's calls, for workers and the trainer."""

    def __init__(self, url: str, token: str) -> None:
        self._client = Client("the controller", url, token)

    def lease(self, worker: str, wait_s: float = POLL_S) -> Lease | None:
        """Work for `worker`, waited for up to `wait_s` seconds."""
        return self._client.post("/lease", LeaseRequest(worker, wait_s), LeaseReply).lease

    def commit(self, lease: str, captured: tuple[Captured, ...]) -> bool:
        """Whether the results were accepted."""
        return self._client.post("/commit", Commit(lease, captured), CommitReply).accepted

    def fail(self, lease: str, error: str) -> None:
        """Say that a lease came to nothing."""
        self._client.post("/fail", Failed(lease, error), CommitReply)

    def take(self, turn: Turn, patience_s: float) -> Taken:
        """A turn, whole. Raises ValueError where nothing changed for `patience_s` seconds, and says what is missing."""
        missing, since = "", time.monotonic()
        while True:
            taken = self._client.post("/take", Take(turn, min(POLL_S, patience_s)), Taken)
            if taken.ready:
                return taken
            now = time.monotonic()
            if taken.missing != missing:
                missing, since = taken.missing, now
            elif now - since > patience_s:
                raise ValueError(
                    f"waited {patience_s:g} s for optimizer step {turn.step + 1} (turn {turn.slot}) and nothing "
                    f"changed: {missing}. The logs of the capture servers and workers say more"
                )

    def acknowledge(self, turn: Turn) -> tuple[Reference, ...]:
        """A turn was trained. Returns what may leave the store."""
        return self._client.post("/acknowledge", turn, Released).references

    def cover(self, step: int) -> tuple[Reference, ...]:
        """A checkpoint holds the first `step` optimizer steps. Returns what may leave the store."""
        return self._client.post("/cover", Covered(step), Released).references

    def status(self) -> Status:
        """Where the run stands."""
        return self._client.get("/status", Status)

    def close(self) -> None:
        self._client.close()


class CaptureClient:
    """A capture server's calls, for workers."""

    def __init__(self, name: str, url: str, token: str) -> None:
        self._client = Client(name, url, token)

    def capture(self, documents: tuple[Wanted, ...], answer_s: float) -> tuple[Captured, ...]:
        """Capture these documents in one forward and store what is wanted of them."""
        return self._client.post("/capture", CaptureRequest(documents), CaptureReply, answer_s).captured

    def discard(self, captured: tuple[Captured, ...]) -> None:
        """Remove what nobody will read from the store."""
        references = tuple(found.reference for found in captured if found.reference is not None)
        self._client.post("/discard", Released(references), CommitReply)

    def wait_ready(self, patience_s: float) -> None:
        """Wait until the server has its target. Raises TooSlow where it has none in time."""
        self._client.wait_ready(patience_s)

    def close(self) -> None:
        self._client.close()


def _reason(answer: httpx.Response, where: str) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"{where} answered {answer.status_code}: {answer.text[:500]}"
