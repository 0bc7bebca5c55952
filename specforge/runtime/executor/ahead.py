"""In: a function that takes its time. Out: `Ahead`: its values, each made by another thread while the last is used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Ahead(Generic[K, V]):
    """`make(key)` for keys that follow one another: one is made ahead. `following(key)`: the next, None at the end.

    What `make` raises, `take` raises. Its thread does not keep the process alive.
    """

    def __init__(self, make: Callable[[K], V], following: Callable[[K], K | None]) -> None:
        self._make, self._following = make, following
        self._next: _Making[K, V] | None = None

    def take(self, key: K) -> V:
        """The value of `key`; that of the key after it is begun."""
        making = self._next if self._next is not None and self._next.key == key else _Making(key, self._make)
        value = making.result()
        following = self._following(key)
        self._next = None if following is None else _Making(following, self._make)
        return value


class _Making(Generic[K, V]):
    def __init__(self, key: K, make: Callable[[K], V]) -> None:
        self.key, self._make = key, make
        self._made: list[V] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> V:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]

    def _run(self) -> None:
        try:
            self._made.append(self._make(self.key))
        except BaseException as error:
            self._error = error
