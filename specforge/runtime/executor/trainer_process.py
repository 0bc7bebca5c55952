"""In: an assignment. Out: a trained draft: the trainer of a disaggregated run, and what it reached in executed.json."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import attrs
from rich.console import Console

from specforge.runtime.assignment import Assignment, process
from specforge.runtime.child import INTERRUPTED
from specforge.runtime.control.client import ControlClient
from specforge.runtime.data.prepared import read_prepared
from specforge.runtime.executor.executed import Executed, write_executed
from specforge.runtime.executor.run_order import run_agenda
from specforge.runtime.executor.store_feed import Stored, StoreFeed, Turns
from specforge.runtime.executor.trainer import Seat, Trainer
from specforge.runtime.executor.work import capture_role, train_role
from specforge.runtime.memory import memory
from specforge.runtime.preflight import torch_device
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.store.open import open_store
from specforge.runtime.target import Placement
from specforge.runtime.target_head import load_target_head
from specforge.runtime.train.interrupt import Interrupt, Stop
from specforge.runtime.train.launch import launch
from specforge.runtime.train.parallel import ALONE, Ranks, joined


def main(assignment: Assignment) -> int:
    """Train, with features from the run's store. With several ranks this process launches them."""
    plan, folder = assignment.plan, RunFolder(Path(assignment.folder))
    ranks = train_role(plan).ranks
    alone = ranks == 1
    executed: Executed = _train(assignment, ALONE, Interrupt()) if alone else launch(ranks, _rank, (assignment,))
    write_executed(folder.executed, executed)
    return INTERRUPTED if executed.interrupted else 0


def _rank(stop: Stop, assignment: Assignment) -> Executed:
    """What every rank's process runs."""
    with joined("cpu" if train_role(assignment.plan).device == "cpu" else "cuda") as ranks:
        return _train(assignment, ranks, nullcontext(stop))


def _train(assignment: Assignment, ranks: Ranks, stop: AbstractContextManager[Stop]) -> Executed:
    """The training of one rank; only rank 0 has something to say."""
    plan = assignment.plan
    read = {path: read_prepared(Path(path)) for path in dict.fromkeys(assignment.sources)}
    sources = tuple(read[path] for path in assignment.sources)
    role = attrs.evolve(train_role(plan), gpus=process(assignment).gpus)
    seat = Seat(ranks, torch_device(role, ranks.rank), stop)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the run relays each line as it comes
    console = Console(file=sys.stdout, quiet=ranks.rank > 0)
    trainer = Trainer(plan, RunFolder(Path(assignment.folder)), console, sources, seat)
    placement = Placement(str(trainer.device), capture_role(plan).target_dtype)
    control = ControlClient(assignment.control, assignment.token)
    agenda = run_agenda(plan.seed, trainer.work, sources, ranks.size)
    turns = Turns(control, open_store(assignment), agenda, assignment.layout.patience_s)
    feed = StoreFeed(turns, sources[0], trainer.device, ranks.rank)
    with memory(
        f"{plan.name} was trained",
        "Lower train.batch_size (train.accumulation makes up for it) or train.features.source.max_length, and give the "
        "changed recipe another output_dir; or end other programs on this GPU, and run this again",
    ):
        head = load_target_head(plan.target, Path(plan.base), placement)
        return trainer.train(head, Stored(feed, sources[1:]), feed.quantum)
