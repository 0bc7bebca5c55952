"""In: a path as a plan writes it. Out: where that file lies on this machine. Target configs shipped with specforge."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
PREFIX = "shipped:"


def recipes_folder() -> Path:
    """Shipped recipes: the folder beside the package, "specforge_recipes" where installed, "recipes" in a checkout."""
    installed = _PACKAGE.parent / "specforge_recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def config_name(target: str) -> str:
    """The file name of a target's shipped config: "Qwen/Qwen3-8B" -> "Qwen--Qwen3-8B.json"."""
    return target.replace("/", "--") + ".json"


def locate(path: str, base: Path) -> Path:
    """A plan's path on this machine: "shipped:NAME.json", an absolute path, or one relative to the plan's base."""
    if path.startswith(PREFIX):
        return recipes_folder() / "targets" / path.removeprefix(PREFIX)
    return base / path
