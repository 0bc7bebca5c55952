"""In: a file that a user named. Out: whether it is a saved plan, and the Plan in it; every message names the file."""

from __future__ import annotations

from pathlib import Path

from specforge.plan import Plan, PlanError, load


def is_saved_plan(file: str) -> bool:
    """Whether a file is a saved plan, whole or damaged, whatever its name: it begins as JSON and has a digest."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    return text.lstrip().startswith("{") and '"digest"' in text


def read_text(file: str) -> str:
    """The text of a file that should be a saved plan. Raises ValueError where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; write a plan with: compile RECIPE --out") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text, so no plan; write a plan with: compile RECIPE --out FILE") from None


def read_plan(file: str) -> Plan:
    """The plan in a file. Raises ValueError where there is none that this version runs."""
    try:
        return load(read_text(file))
    except PlanError as error:
        raise ValueError(f"{file} is not a plan that runs: {error}") from None
