"""In: token ids over HTTP. Out: their features in the store, and an answer with metadata only: `CaptureServer`.

One forward at a time, always on the same thread: a forward's batch is what one request says, so its rows never change
company, whoever asks when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specforge.runtime.assignment import Assignment, process
from specforge.runtime.capture.finite import faults
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.control.message import (
    Captured,
    CaptureReply,
    CaptureRequest,
    CommitReply,
    Released,
    Wanted,
    load,
)
from specforge.runtime.control.service import authorised, health, record, refused
from specforge.runtime.control.serving import serve
from specforge.runtime.data.batch import Features
from specforge.runtime.data.pack import Document
from specforge.runtime.executor.work import capture_role, work
from specforge.runtime.memory import memory
from specforge.runtime.preflight import torch_device
from specforge.runtime.store.open import open_store
from specforge.runtime.store.store import Store
from specforge.runtime.target import Placement, load_target


class CaptureServer:
    """Serves `engine`; `token`: what a request must carry as its bearer."""

    def __init__(self, engine: TransformersEngine, store: Store, token: str) -> None:
        self._engine, self._store, self._token = engine, store, token
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self._thread = ThreadPoolExecutor(1, "capture", _as_here, (torch.get_num_threads(), device))

    def app(self) -> Starlette:
        """The ASGI application. Every route but /health asks for the token."""
        return Starlette(
            routes=[
                Route("/health", health),
                Route("/capture", self._capture, methods=["POST"]),
                Route("/discard", self._discard, methods=["POST"]),
            ]
        )

    async def _capture(self, request: Request) -> Response:
        if not authorised(request, self._token):
            return refused()
        try:
            asked = load(await request.body(), CaptureRequest)
            loop = asyncio.get_running_loop()
            captured = await loop.run_in_executor(self._thread, self.capture, asked.documents)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (RuntimeError, OSError) as error:  # out of memory, a full disk
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
        return record(CaptureReply(captured))

    async def _discard(self, request: Request) -> Response:
        if not authorised(request, self._token):
            return refused()
        self._store.remove(load(await request.body(), Released).references)
        return record(CommitReply(True))

    def capture(self, wanted: Sequence[Wanted]) -> tuple[Captured, ...]:
        """One forward of these documents. What is wanted of it is stored, unless its features are not finite."""
        features = self._engine.capture([_document(w) for w in wanted])
        kept = [(w, found) for w, found in zip(wanted, features, strict=True) if w.key]
        wrong = faults([found for _, found in kept])
        return tuple(self._put(w, found, fault) for (w, found), fault in zip(kept, wrong, strict=True))

    def _put(self, wanted: Wanted, found: Features, fault: str) -> Captured:
        if fault:
            return Captured(wanted.key, None, fault)
        tensors = {field.name: getattr(found, field.name) for field in attrs.fields(Features)}
        return Captured(wanted.key, self._store.put(wanted.key, wanted.generation, tensors))


def _as_here(threads: int, device: int | None) -> None:
    """Set the calling thread up as this process is: it begins with the environment's number of threads, on GPU 0."""
    torch.set_num_threads(threads)
    if device is not None:
        torch.cuda.set_device(device)


def _document(wanted: Wanted) -> Document:
    tokens_T = np.array(wanted.tokens, np.int32)
    return Document(wanted.document, tokens_T, np.zeros(len(tokens_T), np.bool_))


def main(assignment: Assignment) -> int:
    """A capture server of a run: the target is loaded before the first answer."""
    plan = assignment.plan
    role = attrs.evolve(capture_role(plan), gpus=process(assignment).gpus)
    device = torch_device(role)
    if device.index is not None:
        torch.cuda.set_device(device)
    with memory(
        f"{plan.target.name} was loaded to capture", "Use a smaller target, or a GPU that no other program uses."
    ):
        target = load_target(plan.target, Path(plan.base), Placement(str(device), role.target_dtype))
        settings = work(plan).capture
        assert settings is not None, "a capture server captures"
        engine = TransformersEngine(target, settings)
    if engine.note:
        print(engine.note)
    serve(CaptureServer(engine, open_store(assignment), assignment.token).app())
    return 0
