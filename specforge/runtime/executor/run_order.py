"""In: a plan's work and its prepared documents. Out: their order and agenda, the same in every process. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from specforge.runtime.data.agenda import Agenda, HeldOut
from specforge.runtime.data.order import Order
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.work import Work


def run_order(seed: int, work: Work, prepared: Prepared) -> Order:
    """The order of the training documents `prepared`."""
    train = work.train
    return Order(
        seed=seed,
        documents=len(prepared.documents),
        batch_documents=train.batch_documents,
        accumulation=train.accumulation,
        epochs=train.epochs,
        max_steps=train.max_steps,
    )


def run_agenda(seed: int, work: Work, sources: Sequence[Prepared]) -> Agenda:
    """Everything that a run captures of `sources`: training's, then each evaluation's."""
    held_out = tuple(
        HeldOut(evaluation.settings.every, len(prepared.documents), evaluation.settings.batch_documents)
        for evaluation, prepared in zip(work.evaluations, sources[1:], strict=True)
    )
    return Agenda(run_order(seed, work, sources[0]), work.capture.batch_documents, held_out)
