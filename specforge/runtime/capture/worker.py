"""In: leases of the controller. Out: features captured by a server, their references committed. No torch, no tensor."""

from __future__ import annotations

from typing import Protocol

from specforge.runtime.assignment import Assignment
from specforge.runtime.control.client import CaptureClient, ControlClient
from specforge.runtime.control.message import Captured, Lease, Wanted
from specforge.runtime.control.peer import Refused, TooSlow

# the run itself gives up on a server that takes longer than its plan says
READY_S = 24 * 3600.0


class Leases(Protocol):
    """The controller, as a worker knows it."""

    def lease(self, worker: str) -> Lease | None: ...
    def commit(self, lease: str, captured: tuple[Captured, ...]) -> bool: ...
    def fail(self, lease: str, error: str) -> None: ...


class Capturing(Protocol):
    """A capture server, as a worker knows it."""

    def capture(self, documents: tuple[Wanted, ...], answer_s: float) -> tuple[Captured, ...]: ...
    def discard(self, captured: tuple[Captured, ...]) -> None: ...


def step(name: str, leases: Leases, server: Capturing) -> bool:
    """One lease, if there is one: captured and committed, or said to have failed. Returns whether there was one."""
    lease = leases.lease(name)
    if lease is None:
        return False
    try:
        captured = server.capture(lease.documents, lease.seconds)
    except (Refused, TooSlow) as error:
        leases.fail(lease.id, str(error))
        return True
    if not leases.commit(lease.id, captured):
        server.discard(captured)  # another attempt has other objects
    return True


def main(assignment: Assignment) -> int:
    """A worker of a run, until it is ended."""
    number = assignment.number % len(assignment.servers)
    control = ControlClient(assignment.control, assignment.token)
    server = CaptureClient(f"the capture server server-{number}", assignment.servers[number], assignment.token)
    server.wait_ready(READY_S)
    while True:
        step(assignment.name, control, server)
