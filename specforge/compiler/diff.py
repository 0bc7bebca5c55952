"""In: a plan and the text of a saved one, of this digest or another. Out: what differs, as a person reads it."""

from __future__ import annotations

import json
from typing import Any

from specforge.plan import Plan, PlanError, dump
from specforge.plan_diff import ABSENT, Difference, differences

# Where things came from, and what follows from the rest.
LEFT_OUT = ("digest", "base", "recipe", "origins")


def compare(saved: str, plan: Plan) -> list[Difference]:
    """Fields of `plan` that differ from the saved plan. The saved text may be of another schema, or edited.

    An operation, process or role that only one of them has is named by its list, and its fields are not listed.
    Raises PlanError where it is not a plan at all.
    """
    try:
        old: dict[str, Any] = json.loads(saved)
        if not isinstance(old, dict) or "schema" not in old or "roles" not in old:
            raise ValueError("it has no schema or no roles")
    except ValueError as error:
        raise PlanError(
            f"this file is not a plan ({error}); write one with: specforge compile RECIPE --out FILE"
        ) from None
    found = differences(_compared(old), _compared(json.loads(dump(plan))), order=True)
    lone = {f"{d.path}.{name}." for d in found for name in _lone_names(d)}
    return [d for d in found if not any(d.path.startswith(prefix) for prefix in lone)]


def _lone_names(difference: Difference) -> set[str]:
    """What only one of two lists of names has."""
    old, new = difference.old, difference.new
    if not isinstance(old, list) or not isinstance(new, list):
        return set()
    return {name for name in [*old, *new] if isinstance(name, str) and (name in old) != (name in new)}


def text(found: list[Difference], saved: str) -> str:
    """One field per block: its path, then the saved value and the new one. `saved` is the file's name."""
    if not found:
        return f"no difference from {saved}\n"
    lines = [f"{len(found)} field{'' if len(found) == 1 else 's'} differ{'s' if len(found) == 1 else ''} from {saved}"]
    for difference in found:
        lines += [f"  {difference.path}", f"    - {_value(difference.old)}", f"    + {_value(difference.new)}"]
    return "\n".join(lines) + "\n"


def _compared(plan: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plan.items() if name not in LEFT_OUT}


def _value(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value, ensure_ascii=False)
