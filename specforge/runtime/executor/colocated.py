"""In: a plan of one process, its run folder. Out: a trained draft: target, capture and training share the process.

Preparation, then the trainer over a supply that captures as it is asked; features stay on the device, and no file is
synced within a step but those of a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.executor.capture_feed import CaptureFeed, Capturer, InProcess
from specforge.runtime.executor.executed import Executed
from specforge.runtime.executor.preparation import prepare_run
from specforge.runtime.executor.trainer import Trainer
from specforge.runtime.executor.work import train_role
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.target import Placement, load_target
from specforge.runtime.target_head import target_head


def execute(plan: Plan, folder: RunFolder, console: Console) -> Executed:
    """Train from the folder's latest checkpoint, or from the start, and export. The caller holds the folder's lock."""
    trainer = Trainer(plan, folder, console, prepare_run(plan, folder, console))
    placement = Placement(str(trainer.device), train_role(plan).target_dtype)
    target = load_target(plan.target, Path(plan.base), placement)
    work = trainer.work
    engine = TransformersEngine(target, work.capture)
    feed = CaptureFeed(
        Capturer(engine, work.capture.batch_documents, trainer.device), trainer.sources[0], trainer.order
    )
    held_out = zip(trainer.sources[1:], work.evaluations, strict=True)
    supply = InProcess(feed, tuple((prepared, found.settings.batch_documents) for prepared, found in held_out))
    return trainer.train(target_head(target), supply)
