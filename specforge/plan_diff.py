"""In: plans as plain data. Out: `Difference`s: each field that differs, by its dotted path. Both sides read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

ABSENT = "absent"


@attrs.frozen
class Difference:
    """One field that differs: its dotted path (list entries by their name), and both values."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.old!r} -> {self.new!r}"


def differences(old: dict[str, Any], new: dict[str, Any], *, order: bool = False) -> list[Difference]:
    """Every field that differs, in the old plan's order. `order`: the names in a list count as a field too."""
    before, after = dict(_fields("", old, order)), dict(_fields("", new, order))
    return [
        Difference(path, before.get(path, ABSENT), after.get(path, ABSENT))
        for path in [*before, *(path for path in after if path not in before)]
        if before.get(path, ABSENT) != after.get(path, ABSENT)
    ]


def _fields(path: str, value: Any, order: bool) -> Iterator[tuple[str, Any]]:
    """Leaves as (dotted path, value). A list is walked by its entries' names or paths, else by position."""
    if isinstance(value, dict):
        if not value:
            yield path, {}
        for key, item in value.items():
            yield from _fields(f"{path}.{key}" if path else key, item, order)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        names = [str(item.get("name") or item.get("path") or at) for at, item in enumerate(value)]
        names = [name if names.count(name) == 1 else str(at) for at, name in enumerate(names)]
        if order:
            yield path, names
        for name, item in zip(names, value):
            yield from _fields(f"{path}.{name}", item, order)
    else:
        yield path, list(value) if isinstance(value, tuple) else value
