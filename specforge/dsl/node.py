"""In: a class with fields and rules. Out: a frozen node that checks itself and knows the recipe line that wrote it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar, dataclass_transform

import attrs

from specforge.dsl.problem import Problem, RecipeError
from specforge.dsl.rule import Fault, Rule, nearest

C = TypeVar("C", bound=type)

NODE_RULES = {
    "unknown-field": "a node is given only fields that it has",
    "missing-field": "a node is given every field that has no default",
    "field-twice": "a field is given once, by place or by name",
}


HERE = Path(__file__).parent


class ReadBadValue(Exception):
    """A rule read a value that another rule has refused already: it has nothing to say."""


class BadValue:
    """What a field holds after its value was refused, so that the other problems of the recipe can still be found."""

    def __repr__(self) -> str:
        return "<refused value>"

    def _read(self, *_: object) -> NoReturn:
        raise ReadBadValue

    __bool__ = __len__ = __iter__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = __getitem__ = _read
    __hash__ = _read

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else ReadBadValue()


BAD = BadValue()


@attrs.frozen
class NodeRule:
    """A rule over two fields of one node. `check(node)` gives the field's name and the Fault, or None."""

    code: str
    meaning: str
    check: Callable[[Any], tuple[str, Fault] | None]


@attrs.define
class Written:
    """Where a node was written: line and column of its call, the fields given there, and those set by an override."""

    file: str = ""
    line: int = 0
    column: int = 0
    given: tuple[str, ...] = ()
    positional: int = 0
    field_lines: dict[str, int] = attrs.Factory(dict)
    overridden: tuple[str, ...] = ()

    def line_of(self, name: str) -> int:
        """The line of one argument; the call's where it is not known; 0 for an override, which no line wrote."""
        return 0 if name in self.overridden else self.field_lines.get(name, self.line)


@attrs.define
class Collector:
    """The loader's collection of problems while it executes a recipe file. `place(written)` fills in argument lines."""

    file: str
    place: Callable[[Written], None]
    problems: list[Problem] = attrs.Factory(list)


_collector: ContextVar[Collector | None] = ContextVar("collector", default=None)


@contextmanager
def collecting(collector: Collector) -> Iterator[Collector]:
    """While this is open, nodes report to `collector` instead of raising."""
    token = _collector.set(collector)
    try:
        yield collector
    finally:
        _collector.reset(token)


def report(problem: Problem) -> Any:
    """Keep the problem while a recipe is loaded, else raise it. Gives the stand-in for the refused value."""
    collector = _collector.get()
    if collector is None:
        raise RecipeError(problem)
    collector.problems.append(problem)
    return BAD


def field(*rules: Rule, default: Any = attrs.NOTHING, optional: bool = False) -> Any:
    """A field with its rules. `optional`: None is allowed and means "derived"."""
    metadata = {"rules": rules, "optional": optional}
    return attrs.field(default=default, converter=_tuples, metadata=metadata)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(((k, _tuples(v)) for k, v in value.items()), key=str))
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: C) -> C:
    """Make a frozen node of a class: compares and hashes by value, checks its fields, knows its line.

    A class may list rules over two of its fields in `RULES`.
    """
    made = attrs.frozen(cls, slots=False)
    plain_init = made.__init__  # type: ignore[misc]
    names = tuple(a.name for a in attrs.fields(made))
    required = tuple(a.name for a in attrs.fields(made) if a.default is attrs.NOTHING)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        written = _written()
        given = dict(zip(names, args))
        written.positional = len(given)
        written.given = (*given, *(k for k in kwargs if k in names))
        collector = _collector.get()
        if collector is not None:
            collector.place(written)
        object.__setattr__(self, "_written", written)
        if len(args) > len(names):
            what = f"{cls.__name__} takes at most {len(names)} arguments, and {len(args)} were given"
            report(Problem(written.line, "unknown-field", what, f"keep these: {', '.join(names)}"))
        for name in [k for k in kwargs if k not in names]:
            kwargs.pop(name)
            what = f"{cls.__name__} has no field {name}"
            report(Problem(written.line_of(name), "unknown-field", what, nearest(name, names)))
            for meant in difflib.get_close_matches(name, names, n=1, cutoff=0.6):
                given.setdefault(meant, BAD)  # its default was not meant, and no rule may speak of it
        for name, value in kwargs.items():
            if name in given:
                what = f"{cls.__name__} is given {name} twice, by place and by name"
                report(Problem(written.line_of(name), "field-twice", what, f"keep one of them: {name}=..."))
            given[name] = value
        for name in [r for r in required if r not in given]:
            what = f"{cls.__name__} needs {name}, and it is not given"
            given[name] = report(Problem(written.line, "missing-field", what, f"add {name}=... to {cls.__name__}(...)"))
        plain_init(self, **given)
        _check(self)

    __init__.__wrapped__ = plain_init  # type: ignore[attr-defined]
    made.__init__ = __init__  # type: ignore[misc]
    return made


def is_node(value: Any) -> bool:
    """Whether a value is a node: a number, a text or a refused value is none."""
    return value is not BAD and hasattr(value, "_written")


def written(value: Any) -> Written:
    """Where this node was written."""
    found: Written = value._written
    return found


def problem_of(value: Any, name: str, code: str, what: str, fix: str) -> Problem:
    """A problem of one field of a node, at the line that wrote it."""
    return Problem(written(value).line_of(name), code, what, fix, node=value, field=name)


def evolve(value: Any, change: dict[str, Any], *, overridden: tuple[str, ...] = ()) -> Any:
    """A copy of a node with some fields changed, checked as if written so, that keeps its line and its given fields."""
    before = written(value)
    made = object.__new__(type(value))
    fields = {a.name: getattr(value, a.name) for a in attrs.fields(type(value))} | change
    type(value).__init__.__wrapped__(made, **fields)
    kept = attrs.evolve(before, overridden=(*before.overridden, *overridden))
    object.__setattr__(made, "_written", kept)
    _check(made, before=value, only=tuple(change))
    return made


def _check(self: Any, before: Any = None, only: tuple[str, ...] | None = None) -> None:
    """Report what is wrong with a node; of an evolved one, only what its fields in `only` made wrong since `before`."""
    kind, place = type(self).__name__, self._written
    for a in attrs.fields(type(self)):
        value = getattr(self, a.name)
        if value is BAD or (only is not None and a.name not in only):
            continue
        if isinstance(value, tuple) and any(v is BAD for v in value):
            continue
        if value is None and a.metadata.get("optional"):
            continue
        for rule in a.metadata.get("rules", ()):
            fault = rule.check(a.name, value)
            if fault is not None:
                problem = Problem(place.line_of(a.name), rule.code, f"{kind}.{a.name} {fault.what}", fault.fix)
                object.__setattr__(self, a.name, report(problem))
                break
    rules: tuple[NodeRule, ...] = getattr(type(self), "RULES", ())
    for rule_of_node in rules:
        found = _ask(rule_of_node, self)
        if found is not None and (before is None or found != _ask(rule_of_node, before)):
            name, fault = found
            report(Problem(place.line_of(name), rule_of_node.code, f"{kind}.{name} {fault.what}", fault.fix))


def _ask(rule: NodeRule, value: Any) -> tuple[str, Fault] | None:
    try:
        return rule.check(value)
    except ReadBadValue:
        return None


def _written() -> Written:
    collector = _collector.get()
    frame = sys._getframe(2)
    while collector is not None and frame.f_code.co_filename != collector.file and frame.f_back is not None:
        frame = frame.f_back
    line, column = frame.f_lineno, 0
    position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if position is not None:
        line, column = position[0] or line, position[2] or 0
    if Path(frame.f_code.co_filename).parent == HERE:  # a field's default: no line of the recipe wrote it
        line, column = 0, 0
    return Written(file=frame.f_code.co_filename, line=line, column=column)
