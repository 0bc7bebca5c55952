"""In: functions that make values. Out: each is made once, one ahead, by another thread; errors come with it."""

import threading

import pytest

from specforge.runtime.executor.ahead import Ahead

pytestmark = pytest.mark.null
DEADLINE_S = 30


def test_one_value_is_made_ahead():
    made, begun = [], [threading.Event() for _ in range(4)]

    def make(key):
        made.append((key, threading.current_thread() is threading.main_thread()))
        begun[key].set()
        return key * 10

    ahead = Ahead(make, lambda key: key + 1 if key < 3 else None)
    assert ahead.take(0) == 0
    assert begun[1].wait(DEADLINE_S), "the next is made while nobody asks"
    assert not begun[2].is_set(), "and no more than that"
    assert [ahead.take(key) for key in (1, 2, 3)] == [10, 20, 30]
    assert made == [(key, False) for key in range(4)]


def test_an_error_comes_when_its_value_is_taken():
    def make(key):
        if key == 1:
            raise ValueError("nothing at 1")
        return key

    ahead = Ahead(make, lambda key: key + 1)
    assert ahead.take(0) == 0
    with pytest.raises(ValueError, match="nothing at 1"):
        ahead.take(1)


def test_another_key_than_the_next_is_made_when_it_is_asked_for():
    ahead = Ahead(lambda key: key, lambda key: key + 1)
    assert [ahead.take(key) for key in (0, 5, 6)] == [0, 5, 6]
