"""In: the plan a run was started with and the plan it is resumed with. Out: the fields that differ and matter."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from specforge.plan import CONVERTER, Plan
from specforge.plan_diff import ABSENT, Difference, differences
from specforge.runtime.checkpoint.state import CheckpointError
from specforge.settings import TrainSettings

# What may change when a run is resumed: where and how often something is written, what is exported, and texts and
# estimates that follow from the rest; `strict`, which stops a run or changes nothing. `max_steps` may grow where
# the horizon of the schedule stays the same.
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
# The same, as a recipe writes it.
FREE_IN_RECIPE = ("output_dir", "outputs*", "evaluate*.every", "*.log_every", "*.strict", "*.nonfinite_budget")
STEPS = ("max_steps", "schedule_steps")


def compare_plans(old: Plan, new: Plan, horizon: int | None = None) -> list[Difference]:
    """Fields of `new` that keep it from resuming a run of `old`, in the plan's order. Empty: it may resume.

    `horizon`: the steps of the schedule that the run was trained on; None: what `old` gives.
    """
    free = FREE
    if _goes_on(old, new, horizon):
        free += tuple(f"{path}.{name}" for path in ("batch", "roles.*.ops.*.settings") for name in STEPS)
        free += ("batch.warmup_steps",)
    return [found for found in differences(_prunable(old), _prunable(new)) if not _matches(found.path, free)]


def recipe_changes(old: Plan, new: Plan) -> list[Difference]:
    """What differs and matters as a user wrote it: fields of the recipe by their --set paths, and contents of files.

    What follows from another change is left out. Empty for plans that no recipe was compiled to.
    """
    before, after = ({origin.path: origin for origin in plan.origins} for plan in (old, new))
    found: dict[str, Difference] = {}
    for path in dict.fromkeys([*before, *after]):
        one, other = before.get(path), after.get(path)
        derived = all(o is None or o.source.startswith("derived") for o in (one, other))
        if derived or _matches(path, FREE_IN_RECIPE):
            continue
        values = [ABSENT if o is None else o.value for o in (one, other)]
        if values[0] != values[1]:
            whole = _absent_item(path, before if one is None else after)
            values = [ABSENT if o is None else "given" for o in (one, other)] if whole else values
            found.setdefault(whole or path, Difference(whole or path, *values))
    digests = [{file.path: file.sha256 for file in plan.files} for plan in (old, new)]
    for path in digests[0]:
        one_digest, other_digest = digests[0][path], digests[1].get(path, digests[0][path])
        if one_digest != other_digest:
            found[f"content of {path}"] = Difference(
                f"content of {path}", f"sha256 {one_digest[:12]}", other_digest[:12]
            )
    return list(found.values())


def refuse_changes(old: Plan, new: Plan, run_dir: str, horizon: int | None = None) -> None:
    """Raise CheckpointError that names every change that matters, unless `new` may resume a run of `old`.

    `horizon` as for `compare_plans`.
    """
    if not (internal := compare_plans(old, new, horizon)):
        return
    changes = recipe_changes(old, new)
    if _goes_on(old, new, horizon):
        changes = [change for change in changes if change.path not in [f"train.{name}" for name in STEPS]]
    lines = [f"{c.path}: {c.old} -> {c.new}" for c in changes] or [str(c) for c in internal]
    raise CheckpointError(
        f"{run_dir} holds a run of another recipe; these fields differ (its value -> yours):\n"
        + "\n".join(f"  {line}" for line in lines)
        + _schedule_fix(new, internal, horizon or _horizon(old))
        + "\nUndo these changes to resume it, or give the changed recipe another output_dir"
    )


def _schedule_fix(new: Plan, internal: list[Difference], horizon: int | None) -> str:
    """How a run may go on for more steps, where its number of steps or its schedule is what differs."""
    steps = any(change.path in ("batch.max_steps", "batch.schedule_steps") for change in internal)
    if not steps or horizon is None or new.batch.schedule_steps == horizon:
        return ""
    cosine = any(isinstance(op.settings, TrainSettings) and op.settings.schedule == "cosine" for op in new.ops())
    if cosine and (new.batch.max_steps or 0) > horizon:
        return (
            f"\nThe learning rate of this run is a cosine that ends at step {horizon}: to go beyond, start a run with "
            f"train.schedule_steps={new.batch.max_steps} or more"
        )
    return (
        f"\nThe schedule of this run has {horizon} steps: with train.schedule_steps={horizon} the learning rates stay, "
        "and train.max_steps may grow"
    )


def _horizon(plan: Plan) -> int | None:
    return plan.batch.schedule_steps or plan.batch.max_steps


def _goes_on(old: Plan, new: Plan, horizon: int | None) -> bool:
    """Whether `new` goes on where `old` ended, or beyond, on the same schedule."""
    before, after = old.batch.max_steps, new.batch.max_steps
    if new.batch.schedule_steps is None:
        return False
    return new.batch.schedule_steps == (horizon or _horizon(old)) and (
        before == after or (before is not None and after is not None and after > before)
    )


def _absent_item(path: str, other: Iterable[str]) -> str:
    """The item of a list of nodes ("evaluate[1]") that `path` is in, where the other recipe has no such item."""
    item = re.match(r"\w+\[\d+\]", path)
    return item[0] if item and not any(p.startswith(item[0]) for p in other) else ""


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


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
