"""In: the record classes. Out: none of them can hold a tensor, and each comes back from its text."""

import inspect
import typing

import attrs
import pytest

from specforge.runtime.control import message
from specforge.runtime.data.hole import Hole

pytestmark = pytest.mark.null
RECORDS = [c for _, c in inspect.getmembers(message, inspect.isclass) if attrs.has(c)]
PLAIN = {int, float, str, bool, type(None)}


def leaves(kind):
    if attrs.has(kind):
        for field in attrs.fields(attrs.resolve_types(kind)):
            yield from leaves(field.type)
    elif typing.get_args(kind):
        for inner in typing.get_args(kind):
            if inner is not Ellipsis:
                yield from leaves(inner)
    else:
        yield kind


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_made_of_plain_values(kind):
    assert set(leaves(kind)) <= PLAIN


def test_the_test_sees_every_record():
    assert len(RECORDS) > 15
    assert Hole in RECORDS


def test_a_record_comes_back_from_its_text():
    reference = message.Reference("s", "0.0.1", 2, 10, (message.TensorShape("aux_TC", "bfloat16", (3, 4)),))
    taken = message.Taken(True, given=(message.Given(1, reference),), holes=(Hole(2, "NaN"),))
    assert message.load(message.dump(taken), message.Taken) == taken


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "x"}', '{"step": 1, "slot": 0, "more": 1}'])
def test_another_text_is_a_message_error(text):
    with pytest.raises(message.MessageError, match=r"not a Turn: .*; both ends must run the same specforge"):
        message.load(text, message.Turn)
