"""In: a Recipe and "path=value" overrides. Out: the Recipe with those values, checked as if they were written there."""

from __future__ import annotations

import ast
import difflib
import re
from typing import Any

import attrs

from specforge.dsl.node import BAD, Collector, evolve, is_node, report, written
from specforge.dsl.problem import Problem
from specforge.dsl.recipe import Recipe, children, walk
from specforge.dsl.rule import nearest

OVERRIDE_RULES = {
    "override-form": "an override is written path=value",
    "override-path": "an override names a field of the recipe",
}


def apply(recipe: Recipe, overrides: tuple[str, ...], collector: Collector) -> Recipe:
    """Set each override in turn. A node that the recipe uses in several places changes in all of them."""
    for text in overrides:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not path:
            what = f"--set {text} {'names no field' if equals else 'has no value'}"
            report(Problem(0, "override-form", what, "write --set train.learning_rate=3e-4"))
            continue
        found = _field(recipe, path)
        if found is None and _below_refused(recipe, path):
            continue
        if found is None:
            near = nearest(path, _paths(recipe))
            fix = near if near.startswith("did") else f"the nearest are {_nearest_paths(recipe, path)}"
            report(Problem(0, "override-path", f"--set {path} names no field of this recipe", fix))
            continue
        node, name = found
        before = len(collector.problems)
        changed = evolve(node, {name: _value(value)}, overridden=(name,))
        for index in range(before, len(collector.problems)):
            problem = collector.problems[index]
            collector.problems[index] = attrs.evolve(problem, line=0, what=f"--set {text}: {problem.what}")
        recipe = _replace(recipe, node, changed)
    return recipe


def named(problems: list[Problem], recipe: Recipe) -> list[Problem]:
    """The problems between nodes; one of an overridden field says which --set it came from."""
    return [attrs.evolve(problem, what=_origin(problem, recipe) + problem.what) for problem in problems]


def _origin(problem: Problem, recipe: Recipe) -> str:
    name = problem.field
    for path, node in walk(recipe):
        if node is problem.node and name in written(node).overridden:
            return f"--set {f'{path}.{name}' if path else name}={getattr(node, name)}: "
    return ""


def _paths(recipe: Recipe) -> list[str]:
    """Every field that can be set, as dotted paths."""
    found = []
    for path, node in walk(recipe):
        held = {name for name, _ in children(node)}
        for a in attrs.fields(type(node)):
            if a.name not in held:
                found.append(f"{path}.{a.name}" if path else a.name)
    return found


def _nearest_paths(recipe: Recipe, path: str) -> str:
    leaf = path.rsplit(".", 1)[-1]
    same = [p for p in _paths(recipe) if p.rsplit(".", 1)[-1] == leaf]
    return ", ".join(same[:4] or difflib.get_close_matches(path, _paths(recipe), n=4, cutoff=0.0))


def _field(recipe: Recipe, path: str) -> tuple[Any, str] | None:
    parent, _, name = path.rpartition(".")
    for at, node in walk(recipe):
        if at == parent and name in {a.name for a in attrs.fields(type(node))}:
            return node, name
    return None


def _below_refused(recipe: Recipe, path: str) -> bool:
    """Whether the path leads into a value that was refused, so that nothing can be said of it."""
    for at, node in walk(recipe):
        for a in attrs.fields(type(node)):
            if getattr(node, a.name) is BAD and path.startswith(f"{at}.{a.name}.".lstrip(".")):
                return True
    return False


def _value(text: str) -> Any:
    """A Python literal where it is one, else the text itself: max_steps=10, schedule=constant."""
    text = text.strip()
    if re.fullmatch(r"true|false", text):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _replace(value: Any, old: Any, new: Any) -> Any:
    """`value` with the node `old` exchanged for `new` wherever it stands; lines and given fields stay."""
    if value is old:
        return new
    if isinstance(value, tuple):
        items = tuple(_replace(v, old, new) for v in value)
        return value if all(a is b for a, b in zip(items, value)) else items
    if not is_node(value):
        return value
    change = {}
    for a in attrs.fields(type(value)):
        held = getattr(value, a.name)
        swapped = _replace(held, old, new)
        if swapped is not held:
            change[a.name] = swapped
    return evolve(value, change) if change else value
