"""In: a plan. Out: what its sources become, before anything is trained on: reports, documents, the draft vocabulary."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from specforge.plan import Plan
from specforge.runtime.data.report import counted
from specforge.runtime.data.shown import shown
from specforge.runtime.data.source import Prepared
from specforge.runtime.data.sources import prepare_sources
from specforge.runtime.data.vocab_map import count
from specforge.runtime.data.vocab_report import vocab_report
from specforge.runtime.executor.work import plan_sources, records, work
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.target import load_tokenizer


def check_data(plan: Plan, documents: int, console: Console | None = None) -> None:
    """Print the report of every source to `console` (standard output), and its first `documents` documents.

    What is tokenised stays in the run folder, where a run of the plan finds it. Raises ValueError where a source
    cannot be prepared or nothing of it is left.
    """
    if documents < 0:
        raise ValueError(f"--show is {documents}, and it takes a whole number of at least 0")
    console = console or Console()
    tokenizer = _tokenizer(plan) if documents else None
    for _, made in prepare_sources(plan.target, Path(plan.base), plan_sources(plan), _cache(plan)):
        console.out(made.report.text(), highlight=False)
        _show(made, documents, tokenizer, console)


def _show(made: Prepared, documents: int, tokenizer: PreTrainedTokenizerBase | None, console: Console) -> None:
    for document in made.documents[:documents]:
        row = made.describe(document.index) if made.parts else f"row {made.rows[document.index]}"
        counts = f"{counted(len(document.tokens), 'token')}, {document.supervised:,} supervised"
        console.out(f"\n{row}: {counts}", highlight=False)
        console.print(shown(document, tokenizer, brackets=not console.is_terminal), soft_wrap=True)


def vocabulary_text(plan: Plan) -> str:
    """What the draft vocabulary that training would make covers. Raises as `check_data` does.

    Raises ValueError too for a recording, which trains no draft.
    """
    if records(plan):
        raise ValueError(f"{plan.name} records and trains no draft; ask with the recipe that trains on its features")
    todo = work(plan)
    ((_, made),) = prepare_sources(plan.target, Path(plan.base), [todo.source], _cache(plan))
    counts_V = count(made.documents, plan.target.geometry.vocab_size)
    tokenizer = _tokenizer(plan)

    def name(id: int) -> str:
        return "" if tokenizer is None else repr(tokenizer.decode([id]))

    report = vocab_report(counts_V, todo.train.draft.draft_vocab_size)
    return f"{todo.source.path}, {counted(len(made.documents), 'document')}\n{report.text(name)}"


def _tokenizer(plan: Plan) -> PreTrainedTokenizerBase | None:
    """The target's tokenizer; None for a target with random weights, which has none."""
    return None if plan.target.random_seed is not None else load_tokenizer(plan.target, Path(plan.base))


def _cache(plan: Plan) -> Path:
    return RunFolder(Path(plan.output_dir)).prepared
