"""In: a plan of one role, its run folder. Out: a trained draft: target, capture and training share a process.

Preparation, then the trainer over a supply that captures as it is asked; features stay on the device, and no file is
synced within a step but those of a checkpoint. Where features are recorded, they are read as they are asked for, and
of the target only the head is there. With several ranks this process prepares and then launches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.capture.caught import Capturing
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.capture_feed import CaptureFeed, Capturer, InProcess
from specforge.runtime.executor.executed import Executed
from specforge.runtime.executor.preparation import prepare_run
from specforge.runtime.executor.trainer import Seat, Trainer
from specforge.runtime.executor.work import train_role
from specforge.runtime.preflight import torch_device
from specforge.runtime.recording.reader import Reader
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.target import Placement, load_target
from specforge.runtime.target_head import load_target_head, target_head
from specforge.runtime.train.interrupt import Interrupt, Stop
from specforge.runtime.train.launch import launch, start_server
from specforge.runtime.train.parallel import ALONE, joined


def execute(plan: Plan, folder: RunFolder, console: Console) -> Executed:
    """Train from the folder's latest checkpoint, or from the start, and export. The caller holds the folder's lock.

    Raises, beside what training raises, RankDied where one of several ranks is killed.
    """
    role = train_role(plan)
    if role.ranks == 1:
        sources = prepare_run(plan, folder, console)
        seat = Seat(ALONE, torch_device(role), Interrupt())
        return _train(Trainer(plan, folder, console, sources, seat))
    start_server()
    prepare_run(plan, folder, console)
    executed: Executed = launch(role.ranks, _rank, (plan, folder))
    return executed


def _rank(stop: Stop, plan: Plan, folder: RunFolder) -> Executed:
    """What every rank's process runs; sources are prepared already, and only rank 0 has something to say."""
    role, silent = train_role(plan), Console(quiet=True, force_terminal=False)
    with joined("cpu" if role.device == "cpu" else "cuda") as ranks:
        console = Console(stderr=True) if ranks.rank == 0 else silent
        seat = Seat(ranks, torch_device(role, ranks.rank), nullcontext(stop))
        sources: Sequence[Prepared] = prepare_run(plan, folder, silent)
        return _train(Trainer(plan, folder, console, sources, seat))


def _train(trainer: Trainer) -> Executed:
    plan, work, ranks = trainer.plan, trainer.work, trainer.seat.ranks
    placement = Placement(str(trainer.device), train_role(plan).target_dtype)
    capturer: Capturing
    if work.capture is None:
        head, capturer = load_target_head(plan.target, Path(plan.base), placement), Reader()
    else:
        target = load_target(plan.target, Path(plan.base), placement)
        head, engine = target_head(target), TransformersEngine(target, work.capture)
        capturer = Capturer(engine, work.capture.batch_documents)
        if engine.note:
            trainer.say(engine.note)
    feed = CaptureFeed(capturer, trainer.sources[0], trainer.order, trainer.device, rank=ranks.rank)
    held_out = zip(trainer.sources[1:], work.evaluations, strict=True)
    packed = tuple((prepared, found.settings.batch_documents) for prepared, found in held_out)
    return trainer.train(head, InProcess(feed, packed, ranks), feed.quantum)
