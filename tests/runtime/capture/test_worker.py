"""In: leases and a server that answers, refuses or is slow. Out: what a worker commits, gives up or discards."""

import pytest

from specforge.runtime.capture.worker import step
from specforge.runtime.control.message import Captured, Lease, Reference, Wanted
from specforge.runtime.control.peer import PeerGone, Refused, TooSlow

pytestmark = pytest.mark.null
LEASE = Lease("0.0/0#1", "0.0/0", 0, 30.0, (Wanted(4, (1, 2)), Wanted(5, (3,), "0.0.5", 1)))
CAPTURED = (Captured("0.0.5", Reference("s", "0.0.5", 1, 10, ())),)


class Peers:
    """Controller and server at once: keeps what it is told."""

    def __init__(self, lease=LEASE, accepts=True, error=None):
        self._lease, self._accepts, self._error, self.told = lease, accepts, error, []

    def lease(self, worker):
        self.told.append(("lease", worker))
        return self._lease

    def commit(self, lease, captured):
        self.told.append(("commit", lease, captured))
        return self._accepts

    def fail(self, lease, error):
        self.told.append(("fail", lease, error))

    def capture(self, documents, answer_s):
        self.told.append(("capture", documents, answer_s))
        if self._error:
            raise self._error
        return CAPTURED

    def discard(self, captured):
        self.told.append(("discard", captured))


def test_a_lease_is_captured_and_committed():
    peers = Peers()
    assert step("w", peers, peers)
    assert peers.told == [("lease", "w"), ("capture", LEASE.documents, 30.0), ("commit", LEASE.id, CAPTURED)]


def test_without_work_nothing_is_captured():
    peers = Peers(lease=None)
    assert not step("w", peers, peers)
    assert peers.told == [("lease", "w")]


@pytest.mark.parametrize("error", [Refused("out of memory"), TooSlow("no answer in 30 s")])
def test_what_the_server_could_not_do_is_told_to_the_controller(error):
    peers = Peers(error=error)
    assert step("w", peers, peers)
    assert peers.told[-1] == ("fail", LEASE.id, str(error))


def test_a_server_that_is_gone_ends_the_worker():
    peers = Peers(error=PeerGone("gone"))
    with pytest.raises(PeerGone):
        step("w", peers, peers)


def test_objects_of_a_lease_that_ran_out_are_discarded():
    peers = Peers(accepts=False)
    assert step("w", peers, peers)
    assert peers.told[-1] == ("discard", CAPTURED)
