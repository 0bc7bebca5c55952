"""In: an assignment. Out: the run's controller, served: ledger rewound to the checkpoint, dead features removed."""

from __future__ import annotations

from pathlib import Path

from specforge.runtime.assignment import Assignment
from specforge.runtime.control.controller import Controller
from specforge.runtime.control.ledger import Ledger
from specforge.runtime.control.limits import at_least
from specforge.runtime.control.service import Service
from specforge.runtime.control.serving import serve
from specforge.runtime.data.prepared import read_prepared
from specforge.runtime.executor.run_order import run_agenda
from specforge.runtime.executor.work import train_role, work
from specforge.runtime.store.shared_files import SharedFiles


def main(assignment: Assignment) -> int:
    """The controller of a run, until it is ended."""
    plan = assignment.plan
    read = {path: read_prepared(Path(path)) for path in dict.fromkeys(assignment.sources)}
    sources = tuple(read[path] for path in assignment.sources)
    agenda = run_agenda(plan.seed, work(plan), sources, train_role(plan).ranks)
    found, files = assignment.layout, SharedFiles(Path(assignment.store))
    keep = found.retain == "features"
    ledger = Ledger(Path(assignment.folder) / "ledger.sqlite")
    files.clean(ledger.rewind(assignment.step, plan.digest, files.holds if keep else None))
    controller = Controller(ledger, agenda, sources, at_least(found.limits, agenda), assignment.step, keep)
    serve(Service(controller, assignment.token).app())
    ledger.close()
    return 0
