"""In: a plan and its run folder. Out: every source of it prepared, in the order of `Work.sources`; each is reported."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from specforge.plan import Plan
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.sources import prepare_sources
from specforge.runtime.executor.work import AnySource, work
from specforge.runtime.run_folder import RunFolder


def prepare_run(plan: Plan, folder: RunFolder, console: Console) -> tuple[Prepared, ...]:
    """Every source of the plan, tokenised now or found in the run folder."""
    sources = work(plan).sources
    found: dict[AnySource, Prepared] = {}
    for source, made in prepare_sources(plan.target, Path(plan.base), sources, folder.prepared):
        found[source] = made
        console.print(made.report.text(), markup=False, highlight=False, soft_wrap=True)
    return tuple(found[source] for source in sources)
