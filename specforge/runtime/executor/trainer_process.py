"""In: an assignment. Out: a trained draft: the trainer of a disaggregated run, and what it reached in executed.json."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
from rich.console import Console

from specforge.runtime.assignment import Assignment, process
from specforge.runtime.child import INTERRUPTED
from specforge.runtime.control.client import ControlClient
from specforge.runtime.data.prepared import read_prepared
from specforge.runtime.executor.executed import write_executed
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
from specforge.runtime.train.interrupt import Interrupt
from specforge.runtime.train.parallel import ALONE


def main(assignment: Assignment) -> int:
    """Train, with features from the run's store."""
    plan, folder = assignment.plan, RunFolder(Path(assignment.folder))
    read = {path: read_prepared(Path(path)) for path in dict.fromkeys(assignment.sources)}
    sources = tuple(read[path] for path in assignment.sources)
    role = attrs.evolve(train_role(plan), gpus=process(assignment).gpus)
    seat = Seat(ALONE, torch_device(role), Interrupt())
    trainer = Trainer(plan, folder, Console(file=sys.stdout), sources, seat)
    placement = Placement(str(trainer.device), capture_role(plan).target_dtype)
    control = ControlClient(assignment.control, assignment.token)
    agenda = run_agenda(plan.seed, trainer.work, sources)
    turns = Turns(control, open_store(assignment), agenda, assignment.layout.patience_s)
    supply = Stored(StoreFeed(turns, sources[0], trainer.device), sources[1:])
    with memory(
        f"{plan.name} was trained",
        "Lower train.batch_size (train.accumulation makes up for it) or train.features.source.max_length, and give the "
        "changed recipe another output_dir; or end other programs on this GPU, and run this again",
    ):
        executed = trainer.train(load_target_head(plan.target, Path(plan.base), placement), supply)
    write_executed(folder.executed, executed)
    return INTERRUPTED if executed.interrupted else 0
