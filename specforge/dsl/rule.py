"""In: a value given to a field. Out: `Rule`, which says in words what is wrong with it; the rules that fields share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

MOST_LONGER = 3
FLAG = r"[A-Za-z0-9][A-Za-z0-9-]*"
HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\])"


@attrs.frozen
class Fault:
    """What is wrong with a value ("is 0, and takes ...") and the edit that fixes it."""

    what: str
    fix: str


@attrs.frozen
class Rule:
    """A rule of one field. `check(name, value)` gives a Fault, or None where the value is fine."""

    code: str
    meaning: str
    check: Callable[[str, Any], Fault | None]


def nearest(word: str, known: Iterable[str]) -> str:
    """'did you mean X?' for a misspelt word or a part of a name ("steps" or "stps" of max_steps), or what exists."""
    names = sorted(known)
    parts = _parts(word)
    for wanted in (parts, _spelt(parts, set().union(*map(_parts, names)))):
        longer = [name for name in names if wanted and wanted <= _parts(name)]
        longer = [name for name in longer if wanted == _parts(name)] or longer
        if 1 <= len(longer) <= MOST_LONGER:
            return f"did you mean {' or '.join(longer)}?"
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def _parts(word: str) -> set[str]:
    return set(re.findall(r"[A-Za-z0-9]+", word))


def _spelt(parts: set[str], known: set[str]) -> set[str]:
    """Each part as the known one that it is closest to."""
    return {(difflib.get_close_matches(part, sorted(known), n=1, cutoff=0.8) or [part])[0] for part in parts}


def shown(value: Any) -> str:
    """A value as a message shows it: short, on one line, a sequence as a list."""
    plain = list(value) if isinstance(value, tuple) else value
    text = repr(plain) if not attrs.has(type(value)) else f"{type(value).__name__}(...)"
    return text if len(text) <= 60 else text[:57] + "..."


def whole(low: int = 1, high: int | None = None) -> Rule:
    """A whole number from `low` to `high` (both included)."""
    span = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
            return None
        return Fault(f"is {shown(value)}, and it takes {span}", f"set {name} to {span}")

    return Rule("whole-number", "a field that counts takes a whole number within its bounds", check)


def even() -> Rule:
    """An even whole number of at least 2."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 2 and value % 2 == 0:
            return None
        what = f"is {shown(value)}, and it takes an even whole number: rotary embeddings turn pairs of elements"
        return Fault(what, f"set {name} to an even number, such as 64 or 128")

    return Rule("even-number", "a size that is turned in pairs is even", check)


def number(low: float, high: float | None = None, *, above: bool = False) -> Rule:
    """A finite number from `low` (excluded where `above`) to `high` (included)."""
    least = f"a number {'above' if above else 'of at least'} {low:g}"
    span = least if high is None else f"{least} and at most {high:g}"

    def check(name: str, value: Any) -> Fault | None:
        numeric = isinstance(value, int | float) and not isinstance(value, bool) and value == value
        top = value < float("inf") if numeric and high is None else numeric and value <= high
        if top and (low < value if above else low <= value):
            return None
        return Fault(f"is {shown(value)}, and it takes {span}", f"set {name} to {span}")

    return Rule("number-range", "a field that measures takes a finite number within its bounds", check)


def choice(*options: str) -> Rule:
    """One of the given words."""

    def check(name: str, value: Any) -> Fault | None:
        if value in options:
            return None
        close = difflib.get_close_matches(str(value), options, n=1, cutoff=0.6) or options
        return Fault(
            f"is {shown(value)}, and it takes one of {', '.join(options)}",
            "write " + " or ".join(f"{name}={option!r}" for option in close),
        )

    return Rule("choice", "a field with a fixed set of words takes one of them", check)


def text(what: str) -> Rule:
    """A non-empty string without surrounding white space; `what` says what it names."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, str) and value and value == value.strip():
            return None
        return Fault(f"is {shown(value)}, and it takes {what}", f"write {name} as text, without spaces around it")

    return Rule("text", "a field that names something takes text, not empty, without spaces around it", check)


def run_folder() -> Rule:
    """A folder; {name} in it stands for the recipe's."""

    def check(name: str, value: Any) -> Fault | None:
        fault = text("a folder").check(name, value)
        if fault is None and {"{", "}"} & set(value.replace("{name}", "")):
            return Fault(f"is {shown(value)}, and nothing but {{name}} is filled in", "write it like 'runs/{name}'")
        return fault

    return Rule("run-folder", "a run's folder is a path, perhaps with {name} in it", check)


def url() -> Rule:
    """An http address of a server: scheme and host, perhaps a port, nothing behind them."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, str) and re.fullmatch(r"https?://" + HOST + r"(:\d{1,5})?/?", value) and _port(value) != 0:
            return None
        return Fault(f"is {shown(value)}, and it takes http://HOST:PORT", f"write {name} like 'http://127.0.0.1:30000'")

    return Rule("url", "the address of a server is http://HOST:PORT", check)


def address() -> Rule:
    """HOST:PORT."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, str) and re.fullmatch(HOST + r":\d{1,5}", value) and _port(value) != 0:
            return None
        return Fault(f"is {shown(value)}, and it takes HOST:PORT", f"write {name} like '10.0.0.7:50051'")

    return Rule("address", "the address of a service is HOST:PORT", check)


def _port(value: str) -> int | None:
    """The port behind an address: None where there is none, 0 where it cannot be one."""
    digits = re.search(r":(\d+)/?$", value)
    port = int(digits[1]) if digits else None
    return port if port is None or port < 1 << 16 else 0


def reply_mark() -> Rule:
    """A text that marks a place in a rendered chat; white space around it counts."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, str) and value:
            return None
        what = f"is {shown(value)}, and it takes the text that the chat template writes there"
        return Fault(what, f"write {name} like '<|im_start|>assistant\\n'")

    return Rule("reply-mark", "a mark of a reply is text, not empty", check)


def flag() -> Rule:
    """True or False."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, bool):
            return None
        return Fault(f"is {shown(value)}, and it takes True or False", f"write {name}=True or {name}=False")

    return Rule("flag", "a switch takes True or False", check)


def file_name() -> Rule:
    """A name that can be a folder."""

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            return None
        return Fault(
            f"is {shown(value)}, and it names the run's folder: letters, digits, '.', '_' and '-'",
            f"write {name} like 'qwen3-8b-eagle3'",
        )

    return Rule("file-name", "a run's name can be the name of a folder", check)


def layer_ids() -> Rule:
    """Distinct layer ids, ascending, 0-based."""

    def check(name: str, value: Any) -> Fault | None:
        ids = value if isinstance(value, tuple) else ()
        whole_ids = bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        if whole_ids and list(ids) == sorted(set(ids)):
            return None
        return Fault(
            f"is {shown(value)}, and it takes distinct layer ids in ascending order, counted from 0",
            f"write {name} like [1, 14, 26]",
        )

    return Rule("layer-ids", "captured layers are distinct, ascending and counted from 0", check)


def gpu_ids() -> Rule:
    """Distinct numbers of GPUs, from 0, at least one."""

    def check(name: str, value: Any) -> Fault | None:
        ids = value if isinstance(value, tuple) else ()
        whole_ids = bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        if whole_ids and len(ids) == len(set(ids)):
            return None
        return Fault(
            f"is {shown(value)}, and it takes distinct numbers of GPUs, counted from 0", f"write {name} like [0, 1]"
        )

    return Rule("gpu-ids", "GPUs are named by distinct numbers, counted from 0", check)


def node(*kinds: type, why: str = "") -> Rule:
    """A node of one of the given classes; `why` says in words what to give."""
    names = " or ".join(k.__name__ for k in kinds)

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, kinds):
            return None
        written = why or " or ".join(f"{k.__name__}(...)" for k in kinds)
        return Fault(f"is {shown(value)}, and it takes {names}", f"give it {written}")

    return Rule("node-kind", "a field that takes a node takes one of the right kind", check)


def nodes(*kinds: type) -> Rule:
    """A sequence of nodes of the given classes."""
    names = " or ".join(k.__name__ for k in kinds)

    def check(name: str, value: Any) -> Fault | None:
        if isinstance(value, tuple):
            wrong = [v for v in value if not isinstance(v, kinds)]
            if not wrong:
                return None
            return Fault(f"holds {shown(wrong[0])}, and it takes {names}", f"put only {names} nodes into {name}")
        return Fault(f"is {shown(value)}, and it takes a list of {names}", f"write {name}=[...]")

    return Rule("node-list", "a field that takes several nodes takes a list of the right kind", check)


def pair_of_betas() -> Rule:
    """Two numbers from 0 (included) to 1 (excluded)."""

    def check(name: str, value: Any) -> Fault | None:
        ok = isinstance(value, tuple) and len(value) == 2
        if ok and all(isinstance(b, int | float) and not isinstance(b, bool) and 0.0 <= b < 1.0 for b in value):
            return None
        return Fault(f"is {shown(value)}, and it takes two numbers from 0 to below 1", f"write {name}=(0.9, 0.999)")

    return Rule("betas", "AdamW's betas are two numbers from 0 to below 1", check)


def weights() -> Rule:
    """Finite numbers above 0 and at most 1000."""

    def check(name: str, value: Any) -> Fault | None:
        numbers = value if isinstance(value, tuple) else (None,)
        if all(isinstance(w, int | float) and not isinstance(w, bool) and 0 < w <= 1000 for w in numbers):
            return None
        return Fault(f"is {shown(value)}, and it takes a list of numbers above 0", f"write {name} like [1, 0.5]")

    return Rule("weights", "weights are numbers above 0, at most 1000", check)


def flags() -> Rule:
    """Command-line flags by name, written as a dictionary."""

    def check(name: str, value: Any) -> Fault | None:
        pairs = isinstance(value, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in value)
        names = [k.lstrip("-").replace("_", "-") for k, _ in value if isinstance(k, str)] if pairs else []
        formed = pairs and len(names) == len(value) and all(re.fullmatch(FLAG, name) for name in names)
        if formed and all(isinstance(v, str | int | float | bool) and v == v for _, v in value):
            twice = sorted({n for n in names if names.count(n) > 1})
            return Fault(f"gives {twice[0]} twice", "keep one of them") if twice else None
        what = f"is {shown(value)}, and it takes a dictionary of flags with texts, numbers, True or False"
        return Fault(what, f'write {name} like {{"attention-backend": "fa3"}}')

    return Rule("flags", "flags are a dictionary of names with plain values", check)


def some_nodes(*kinds: type) -> Rule:
    """A sequence of at least one node of the given classes."""
    any_number = nodes(*kinds)

    def check(name: str, value: Any) -> Fault | None:
        if value == ():
            return Fault("is empty, and it takes at least one", f"write {name}=[{kinds[0].__name__}()]")
        return any_number.check(name, value)

    return Rule("node-list", any_number.meaning, check)
