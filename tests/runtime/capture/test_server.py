"""In: documents for a server around a toy target. Out: features in the store, answers without any, faults by name."""

import asyncio
import json

import httpx
import numpy as np
import pytest
import torch

from specforge.runtime.capture.finite import faults
from specforge.runtime.capture.server import CaptureServer
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.control.message import CaptureReply, CaptureRequest, Released, Wanted, dump, load
from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document
from specforge.runtime.store.shared_dir import SharedDir
from specforge.runtime.target import Placement, load_target
from specforge.settings import CaptureSettings

pytestmark = pytest.mark.cpu
WANTED = (
    Wanted(7, tuple(range(5, 15)), "0.0.7", 1),
    Wanted(3, (1, 2, 3)),
    Wanted(9, tuple(range(20, 26)), "0.0.9", 4),
)


@pytest.fixture
def engine(toy):
    plan = toy.plan()
    target = load_target(plan.target, toy.base, Placement("cpu", "float32"))
    return TransformersEngine(target, CaptureSettings((1, 3), True, "bfloat16", 4))


@pytest.fixture
def store(tmp_path):
    return SharedDir("features", tmp_path / "features")


def post(server, path, body, token="secret"):
    """One request to the application itself, without a socket."""

    async def ask():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(server.app()), base_url="http://server", timeout=60
        ) as client:
            return await client.post(path, content=body, headers={"authorization": f"Bearer {token}"})

    return asyncio.run(ask())


def test_what_is_wanted_is_stored_as_the_engine_captures_it(engine, store):
    answer = post(CaptureServer(engine, store, "secret"), "/capture", dump(CaptureRequest(WANTED)))
    assert answer.status_code == 200
    captured = load(answer.content, CaptureReply).captured
    assert [c.key for c in captured] == ["0.0.7", "0.0.9"], "nothing is stored of who keeps company"
    direct = engine.capture([Document(w.document, np.array(w.tokens, np.int32), np.zeros(0, bool)) for w in WANTED])
    for found, wanted, features in zip(captured, (WANTED[0], WANTED[2]), (direct[0], direct[2]), strict=True):
        assert found.reference.generation == wanted.generation
        stored = store.get(found.reference)
        assert torch.equal(stored["aux_TC"], features.aux_TC)
        assert torch.equal(stored["last_TH"], features.last_TH)


def test_the_answer_holds_metadata_only(engine, store):
    long = (Wanted(1, tuple(range(60)), "0.0.1", 1),)
    short = (Wanted(1, tuple(range(3)), "0.0.1", 1),)
    server = CaptureServer(engine, store, "secret")
    sizes = [len(post(server, "/capture", dump(CaptureRequest(some))).content) for some in (long, short)]
    assert sizes[0] - sizes[1] < 10, "shapes have more digits, and nothing else grows"


def test_features_that_are_not_finite_are_not_stored_and_named(engine, store):
    """A target whose embedding of token 22 is NaN."""
    with torch.no_grad():
        engine._target.embedding_VH[22] = float("nan")
    answer = load(
        post(CaptureServer(engine, store, "secret"), "/capture", dump(CaptureRequest(WANTED))).content, CaptureReply
    )
    fine, lost = answer.captured
    assert fine.reference is not None
    assert (lost.key, lost.reference) == ("0.0.9", None)
    assert lost.fault == "aux_TC has values that are not finite, last_TH has values that are not finite"
    assert store.resident_bytes() == fine.reference.bytes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_faults_name_the_feature(value):
    good, bad = (Features(torch.zeros(3, 4), torch.ones(3, 2)) for _ in range(2))
    bad.aux_TC[1, 2] = value
    assert faults([good, bad, good]) == ["", "aux_TC has values that are not finite", ""]
    assert faults([]) == []


def test_what_it_cannot_capture_is_refused_with_the_reason(engine, store):
    server = CaptureServer(engine, store, "secret")
    answer = post(server, "/capture", dump(CaptureRequest((Wanted(1, (1, 500), "k", 1),))))
    assert answer.status_code == 400
    assert "token ids from 1 to 500" in answer.json()["error"]
    assert post(server, "/capture", "{}").status_code == 400
    for path in ("/capture", "/discard"):
        assert post(server, path, dump(CaptureRequest(WANTED)), token="other").status_code == 401
    assert store.resident_bytes() == 0


def test_what_nobody_will_read_is_discarded(engine, store):
    server = CaptureServer(engine, store, "secret")
    captured = load(post(server, "/capture", dump(CaptureRequest(WANTED))).content, CaptureReply).captured
    body = dump(Released(tuple(c.reference for c in captured)))
    assert json.loads(post(server, "/discard", body).content) == {"accepted": True}
    assert store.resident_bytes() == 0
