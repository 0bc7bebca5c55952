"""In: the rules where they stand. Out: `rules()`: every rule's code with its meaning."""

from __future__ import annotations

from typing import Any

import attrs

from specforge import dsl
from specforge.compiler.checks import CHECKS
from specforge.compiler.geometry import WORLD_RULES
from specforge.compiler.load import LOAD_RULES
from specforge.compiler.override import OVERRIDE_RULES
from specforge.dsl.node import NODE_RULES, NodeRule
from specforge.dsl.rule import Rule

NODES: tuple[type, ...] = tuple(c for c in (getattr(dsl, name) for name in dsl.__all__) if attrs.has(c))


def families() -> dict[str, dict[str, str]]:
    """The rules by where they stand; within a family code -> meaning, in the order in which they are asked."""
    return {
        "Reading the recipe file": LOAD_RULES,
        "Overrides": OVERRIDE_RULES,
        "Arguments of a node": NODE_RULES,
        "One field": _of_fields(),
        "Two fields of a node": _of_nodes(),
        "Files and the target's config": WORLD_RULES,
        "Between nodes": {c.code: c.meaning for c in CHECKS},
    }


def rules() -> dict[str, str]:
    """Every rule, code -> meaning. A code stands for one rule: AssertionError where two share one."""
    found: dict[str, str] = {}
    for family in families().values():
        assert not found.keys() & family.keys(), f"two rules share a code: {found.keys() & family.keys()}"
        found |= family
    return found


def _of_fields() -> dict[str, str]:
    every: list[Rule] = [r for kind in NODES for a in _fields(kind) for r in a.metadata.get("rules", ())]
    return _unlike(every)


def _of_nodes() -> dict[str, str]:
    return _unlike([r for kind in NODES for r in getattr(kind, "RULES", ())])


def _unlike(found: list[Any]) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for rule in found:
        assert isinstance(rule, Rule | NodeRule)
        assert meanings.setdefault(rule.code, rule.meaning) == rule.meaning, f"{rule.code} has two meanings"
    return meanings


def _fields(kind: Any) -> tuple[Any, ...]:
    return tuple(attrs.fields(kind))
