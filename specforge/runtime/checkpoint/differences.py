"""In: the plan a run was started with and the plan it is resumed with. Out: the fields that differ and matter."""

from __future__ import annotations

import fnmatch
from typing import Any

from specforge.plan import CONVERTER, Plan
from specforge.plan_diff import Difference, differences
from specforge.runtime.checkpoint.state import CheckpointError

# What may change when a run is resumed: where and how often something is written, what is exported, and texts and
# estimates that follow from the rest; `strict`, which stops a run or changes nothing. `max_steps` may grow where
# `schedule_steps` is given, and so stays the same.
FREE = (
    "base",
    "recipe",
    "origins*",
    "output_dir",
    "warnings*",
    "memory*",
    "flops*",
    "device.*",
    "roles.*.gpus*",
    "export_keys*",
    "roles.*.ops.*.settings.log_every",
    "roles.*.ops.*.settings.strict",
    "roles.*.ops.*.settings.nonfinite_budget",
)
FREE_KINDS = ("CheckpointSettings", "EvaluateSettings.every", "ExportSettings")
GROWING = ("batch.max_steps", "roles.*.ops.*.settings.max_steps")


def compare_plans(old: Plan, new: Plan) -> list[Difference]:
    """Fields of `new` that keep it from resuming a run of `old`, in the plan's order. Empty: it may resume."""
    new_is_longer = _longer(old, new)
    return [
        found
        for found in differences(_prunable(old), _prunable(new))
        if not any(fnmatch.fnmatchcase(found.path, free) for free in FREE)
        and not (new_is_longer and any(fnmatch.fnmatchcase(found.path, growing) for growing in GROWING))
    ]


def refuse_changes(old: Plan, new: Plan, run_dir: str) -> None:
    """Raise CheckpointError that names every field that differs, unless `new` may resume a run of `old`."""
    if found := compare_plans(old, new):
        raise CheckpointError(
            f"{run_dir} holds a run of another recipe; these fields differ (its value -> yours):\n"
            + "\n".join(f"  {difference}" for difference in found)
            + "\nUndo these changes to resume it, or give the changed recipe another output_dir"
        )


def _longer(old: Plan, new: Plan) -> bool:
    """Whether `new` goes on where `old` ended, on the same given schedule."""
    before, after = ((p.batch.max_steps, p.batch.schedule_steps) for p in (old, new))
    given = before[0] is not None and after[0] is not None and after[1] is not None
    return given and before[1] == after[1] and after[0] > before[0]


def _prunable(plan: Plan) -> dict[str, Any]:
    """The plan as plain data without the operations that only write (FREE_KINDS)."""
    data: dict[str, Any] = CONVERTER.unstructure(plan)
    for role in data["roles"]:
        kept = []
        for op in role["ops"]:
            kind = op["settings"]["settings"]
            if kind in FREE_KINDS:
                continue
            op["settings"] = {k: v for k, v in op["settings"].items() if f"{kind}.{k}" not in FREE_KINDS}
            kept.append(op)
        role["ops"] = kept
    return data
