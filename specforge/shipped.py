"""In: a path as a plan writes it. Out: where that file lies on this machine. And where shipped files are."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
PREFIX = "shipped:"
HUB = "hub:"


def recipes_folder() -> Path:
    """Shipped recipes: the folder beside the package, "specforge_recipes" where installed, "recipes" in a checkout."""
    installed = _PACKAGE.parent / "specforge_recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def config_name(target: str) -> str:
    """The file name of a target's shipped config: "Qwen/Qwen3-8B" -> "Qwen--Qwen3-8B.json"."""
    return target.replace("/", "--") + ".json"


def hub_path(target: str) -> str:
    """How a plan writes the config of a target that a Hugging Face cache holds: the same on every machine."""
    return f"{HUB}{target}/config.json"


def hub_config(target: str, caches: tuple[Path, ...]) -> Path | None:
    """That config in the first of the hub caches that has it, of its branch main where the cache knows it."""
    for cache in caches:
        folder = cache / f"models--{target.replace('/', '--')}"
        main = folder / "refs" / "main"
        known = [folder / "snapshots" / main.read_text(encoding="utf-8").strip()] if main.is_file() else []
        for snapshot in [*known, *sorted((folder / "snapshots").glob("*"))]:
            if (snapshot / "config.json").is_file():
                return snapshot / "config.json"
    return None


def locate(path: str, base: Path, caches: tuple[Path, ...] = ()) -> Path:
    """A plan's path on this machine: "shipped:NAME.json", "hub:NAME/config.json", or one relative to the plan's base.

    `caches`: Hugging Face hub caches to look in. Where none has it, the path names no file.
    """
    if path.startswith(PREFIX):
        return recipes_folder() / "targets" / path.removeprefix(PREFIX)
    if path.startswith(HUB):
        return hub_config(path.removeprefix(HUB).removesuffix("/config.json"), caches) or Path(path)
    return base / path
