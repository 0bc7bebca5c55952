"""In: a plan's work and its prepared documents. Out: their order and agenda, the same in every process. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from specforge.runtime.data.agenda import Agenda, HeldOut
from specforge.runtime.data.order import Order, packed
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.work import Work


def run_order(seed: int, work: Work, prepared: Prepared, ranks: int) -> Order:
    """The order of the training documents `prepared`, dealt to `ranks`."""
    train = work.train
    lengths = [len(document.tokens) for document in prepared.documents]
    return Order(
        seed=seed,
        documents=len(lengths),
        batch_documents=train.batch_documents,
        accumulation=train.accumulation,
        epochs=train.epochs,
        max_steps=train.max_steps,
        ranks=ranks,
        packs=None if train.pack_tokens is None else packed(seed, lengths, train.pack_tokens),
    )


def run_agenda(seed: int, work: Work, sources: Sequence[Prepared], ranks: int) -> Agenda:
    """Everything that a run of so many trainers captures of `sources`: training's, then each evaluation's."""
    held_out = tuple(
        HeldOut(evaluation.settings.every, len(prepared.documents), evaluation.settings.batch_documents)
        for evaluation, prepared in zip(work.evaluations, sources[1:], strict=True)
    )
    lengths = tuple(prepared.length for prepared in sources)
    assert work.capture is not None, "an agenda is of what is captured"
    return Agenda(run_order(seed, work, sources[0], ranks), work.capture.batch_documents, lengths, held_out)
