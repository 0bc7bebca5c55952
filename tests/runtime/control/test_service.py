"""In: a controller served on a port of this machine. Out: what its clients get, how long they wait, who is let in."""

import asyncio
import http.client
import sqlite3
import threading
import time

import pytest
import uvicorn

from specforge.runtime.control.client import ControlClient
from specforge.runtime.control.message import Turn
from specforge.runtime.control.peer import PeerGone, Refused, TooSlow
from specforge.runtime.control.service import Service
from specforge.runtime.launch import listen, url

pytestmark = pytest.mark.null
DEADLINE_S = 30


@pytest.fixture
def served(control):
    """`Control` with its clients' URL: served from another thread, on which alone the ledger is used."""
    running = []

    def make(**changes):
        listening, box = listen(), {}

        def serve():
            box["made"] = control(**changes)
            server = uvicorn.Server(
                uvicorn.Config(
                    Service(box["made"].controller, "secret").app(),
                    log_level="critical",
                    lifespan="off",
                    timeout_graceful_shutdown=1,
                )
            )
            box["server"] = server
            server.run(sockets=[listening])

        thread = threading.Thread(target=serve)
        thread.start()
        running.append((thread, box))
        client = ControlClient(url(listening), "secret")
        client.status()
        box["made"].url = url(listening)
        return box["made"], client

    yield make
    for thread, box in running:
        box["server"].should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def address(made):
    return made.url.removeprefix("http://")


def get(made, path, token=None):
    connection = http.client.HTTPConnection(address(made), timeout=DEADLINE_S)
    connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_turn_goes_round(served, captured_results):
    _, client = served()
    lease = client.lease("w")
    assert client.commit(lease.id, captured_results(lease))
    taken = client.take(Turn(0), patience_s=5)
    assert {g.document for g in taken.given} == {w.document for w in lease.documents}
    assert {r.key for r in client.acknowledge(Turn(0))} == {w.key for w in lease.documents}
    assert client.cover(1) == ()
    status = client.status()
    assert (status.covered_step, status.captured, status.total_steps) == (1, 4, 4)


def test_without_the_token_nothing_is_told_but_health(served):
    made, _ = served()
    assert get(made, "/health") == (200, "ok\n")
    for path in ("/status", "/metrics"):
        for token in (None, "secre", "secret2"):
            assert get(made, path, token)[0] == 401
        assert get(made, path, "secret")[0] == 200
    with pytest.raises(Refused, match="needs the run's token"):
        ControlClient(made.url, "other").take(Turn(0), 1)


def test_a_wait_for_a_turn_ends_when_the_last_sample_comes(served, captured_results):
    _, client = served()
    lease = client.lease("w")
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(client.take(Turn(0), patience_s=DEADLINE_S)))
    waiting.start()
    other = ControlClient(str(client._client._http.base_url), "secret")
    assert other.commit(lease.id, captured_results(lease))
    waiting.join(DEADLINE_S)
    assert taken[0].ready


def test_every_wait_has_a_bound_and_says_what_it_waits_for(served):
    _, client = served()
    lease = client.lease("w")
    began = time.monotonic()
    with pytest.raises(
        ValueError, match=r"waited 0.2 s for optimizer step 1 \(turn 0\) and nothing changed: 4 leased of"
    ):
        client.take(Turn(0), patience_s=0.2)
    assert time.monotonic() - began < 10
    assert lease.batch == "0.0/0"
    client.lease("w")
    began = time.monotonic()
    assert client.lease("w", wait_s=0.3) is None, "the high watermark is reached"
    assert 0.3 <= time.monotonic() - began < 10


def test_what_the_controller_refuses_comes_with_its_reason(served):
    _, client = served()
    with pytest.raises(Refused, match="asks for optimizer step 9, and the ledger stands at 0 of 4"):
        client.take(Turn(9), 1)
    with pytest.raises(Refused, match=r"not a Turn: .*both ends must run the same specforge"):
        client._client.post("/acknowledge", {"nothing": 1}, Turn)


def test_a_peer_that_is_gone_or_slow_is_told_apart():
    listening = listen()
    client = ControlClient(url(listening), "secret")
    client._client._http.timeout = 0.2
    with pytest.raises(TooSlow, match="did not answer /status in time"):
        client.status()
    listening.close()
    with pytest.raises(PeerGone, match=r"^the controller at http://127\.0\.0\.1:\d+ is gone"):
        client.status()


def test_metrics_are_prometheus_text(served):
    made, client = served()
    client.lease("w")
    _, text = get(made, "/metrics", "secret")
    lines = text.splitlines()
    assert 'specforge_samples{state="leased"} 4' in lines
    assert "specforge_total_steps 4" in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert names == {line.split()[0].split("{")[0] for line in lines if not line.startswith("#")}


def test_changes_of_one_moment_share_a_commit(control):
    made = control()
    commits, commit = [], made.ledger.commit
    made.ledger.commit = lambda: (commits.append(1), commit())

    async def many():
        service = Service(made.controller, "secret")
        await asyncio.gather(*(service._durable() for _ in range(10)))
        await service._durable()

    asyncio.run(many())
    assert len(commits) == 2


def test_a_ledger_that_cannot_be_written_is_told(served, captured_results):
    made, client = served()
    lease = client.lease("w")

    def full():
        raise sqlite3.OperationalError("database or disk is full")

    made.ledger.commit = full
    with pytest.raises(Refused, match="the ledger cannot be written: database or disk is full"):
        client.commit(lease.id, captured_results(lease))
