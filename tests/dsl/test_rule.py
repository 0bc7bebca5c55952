"""In: values for each field rule. Out: the rule lets the good ones pass and names the bad ones with their value."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge.dsl.rule import (
    choice,
    even,
    file_name,
    flag,
    layer_ids,
    nearest,
    number,
    pair_of_betas,
    shown,
    text,
    whole,
)

pytestmark = pytest.mark.null
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.tuples(st.integers(), st.floats())
)


@given(st.integers(-5, 40))
def test_whole_keeps_both_bounds(value):
    assert (whole(1, 32).check("k", value) is None) == (1 <= value <= 32)
    assert (whole(0).check("k", value) is None) == (value >= 0)


@given(st.floats())
def test_number_is_finite_and_within_its_bounds(value):
    assert (number(0.0).check("x", value) is None) == (math.isfinite(value) and value >= 0)
    assert (number(0.0, above=True).check("x", value) is None) == (math.isfinite(value) and value > 0)
    assert (number(0.0, 1.0).check("x", value) is None) == (0 <= value <= 1)


@given(st.integers(-4, 300))
def test_even_takes_even_numbers_from_two(value):
    assert (even().check("d", value) is None) == (value in range(2, 301, 2))


@given(st.lists(st.integers(-1, 9), max_size=5).map(tuple))
def test_layer_ids_are_distinct_ascending_and_not_empty(ids):
    good = bool(ids) and min(ids) >= 0 and all(a < b for a, b in pairwise(ids))
    assert (layer_ids().check("layers", ids) is None) == good


@pytest.mark.parametrize(
    ("value", "good"), [((0.9, 0.999), True), ((0, 0), True), ((0.9, 1.0), False), ((0.9,), False), (0.9, False)]
)
def test_betas(value, good):
    assert (pair_of_betas().check("betas", value) is None) == good


@pytest.mark.parametrize(
    ("value", "good"), [("a", True), ("qwen3-8b_v1.2", True), ("", False), (".a", False), ("a/b", False), ("ä", False)]
)
def test_file_name(value, good):
    assert (file_name().check("name", value) is None) == good


@given(ANYTHING)
def test_a_refusal_shows_the_value_and_the_field(value):
    for rule in (whole(), number(0.0), choice("a", "b"), text("a path"), flag(), even(), layer_ids(), pair_of_betas()):
        fault = rule.check("field", value)
        if fault is not None:
            assert fault.what.startswith(f"is {shown(value)}, and it takes ")
            assert "field" in fault.fix
            assert "\n" not in fault.what + fault.fix


@given(st.one_of(st.booleans(), st.text(), st.none()))
def test_a_switch_is_no_number_and_a_number_no_switch(value):
    assert whole().check("k", value) is not None
    assert number(0.0).check("x", value) is not None
    assert flag().check("f", 1) is not None


def test_nearest_offers_a_name_or_lists_them():
    assert nearest("leyers", ["layers", "dtype"]) == "did you mean layers?"
    assert nearest("zzz", ["layers", "dtype"]) == "there are dtype, layers"
    assert nearest("zzz", ["layers"]) == "there is layers"


def test_a_long_value_is_clipped():
    assert len(shown("x" * 1000)) <= 60
