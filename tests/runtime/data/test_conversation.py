"""In: rows of both forms, sound and faulty. Out: checks of the messages, and of the reason of each fault."""

import pytest

from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.row_fault import RowFault

pytestmark = pytest.mark.null

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "ho"}
SYSTEM = {"role": "system", "content": "be kind"}
CALL = {"function": {"name": "w", "arguments": '{"city": "Ulm"}'}}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, USER, REPLY]},
        {"conversations": [SYSTEM, USER, REPLY]},
        {
            "id": 7,
            "conversations": [
                {"from": "system", "value": "be kind"},
                {"from": "human", "value": "hi"},
                {"from": "gpt", "value": "ho"},
            ],
        },
        {"system": "be kind", "conversations": [{"from": "user", "value": "hi"}, {"from": "assistant", "value": "ho"}]},
    ],
)
def test_every_form_gives_the_same_messages_with_the_system_turn(row):
    made = conversation(row)
    assert made.messages == (SYSTEM, USER, REPLY)
    assert made.finished == (True,)
    assert made.replies == (2,)
    assert made.tools == ()


def test_finished_is_kept_per_reply():
    row = {"messages": [USER, REPLY, USER, REPLY], "finished": [True, False]}
    assert conversation(row).finished == (True, False)
    assert conversation(row).replies == (1, 3)


@pytest.mark.parametrize("tools", [[{"name": "w"}], '[{"name": "w"}]'])
def test_tools_may_be_a_list_or_its_json(tools):
    assert conversation({"messages": [USER, REPLY], "tools": tools}).tools == ({"name": "w"},)


@pytest.mark.parametrize("tools", [None, [], "", "[]"])
def test_no_tools(tools):
    assert conversation({"messages": [USER, REPLY], "tools": tools}).tools == ()


def test_a_call_needs_no_content_and_its_arguments_become_an_object():
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "9"},
        REPLY,
    ]
    made = conversation({"messages": turns})
    assert made.messages[1]["content"] == ""
    assert made.messages[1]["tool_calls"] == [{"function": {"name": "w", "arguments": {"city": "Ulm"}}}]
    assert made.replies == (1, 3)
    assert turns[1]["content"] is None  # the row itself is not changed
    assert CALL["function"]["arguments"] == '{"city": "Ulm"}'


@pytest.mark.parametrize("listed", [False, True])
def test_calls_and_observations_of_sharegpt_are_tool_turns(listed):
    call = '{"name": "w", "arguments": {"city": "Ulm"}}'
    turns = [("human", "hi"), ("function_call", f"[{call}]" if listed else call), ("observation", "9"), ("gpt", "ho")]
    made = conversation({"conversations": [{"from": role, "value": value} for role, value in turns]})
    assert [m["role"] for m in made.messages] == ["user", "assistant", "tool", "assistant"]
    called = {"type": "function", "function": {"name": "w", "arguments": {"city": "Ulm"}}}
    assert made.messages[1] == {"role": "assistant", "content": "", "tool_calls": [called]}


def test_content_in_parts_is_one_text():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    made = conversation(
        {"messages": [{"role": "developer", "content": parts}, {"role": "user", "content": parts}, REPLY]}
    )
    assert [m["role"] for m in made.messages] == ["system", "user", "assistant"]
    assert [m["content"] for m in made.messages[:2]] == ["a b", "a b"]


def test_null_where_a_text_may_be_is_none():
    made = conversation({"messages": [USER, {**REPLY, "reasoning_content": None, "name": None}]})
    assert made.messages[1] == REPLY


FAULTS = [
    ([1], "row is not an object"),
    ({}, "empty row"),
    ({"messages": []}, "empty row"),
    ({"messages": None, "text": "x"}, "empty row"),
    ({"messages": "hi"}, "turns are not a list"),
    ({"messages": ["hi"]}, "turn is not an object"),
    ({"messages": [REPLY]}, "begins with assistant"),
    ({"messages": [SYSTEM, REPLY, USER]}, "begins with assistant"),
    ({"messages": [USER, USER, REPLY]}, "repeated role"),
    ({"messages": [USER, REPLY, REPLY]}, "repeated role"),
    ({"messages": [SYSTEM, SYSTEM, USER, REPLY]}, "system turn is not first"),
    ({"messages": [USER, SYSTEM, REPLY]}, "system turn is not first"),
    ({"messages": [USER]}, "no assistant turn"),
    ({"messages": [SYSTEM]}, "no assistant turn"),
    ({"messages": [USER, {"role": "bot", "content": "x"}]}, "unknown role"),
    ({"messages": [USER, {"role": ["assistant"], "content": "x"}]}, "unknown role"),
    ({"messages": [USER, {"content": "x"}]}, "unknown role"),
    ({"messages": [USER, {"role": "assistant", "content": None}]}, "content is null"),
    ({"messages": [USER, {"role": "assistant"}]}, "content is null"),
    ({"messages": [{"role": "user", "content": None}, REPLY]}, "content is null"),
    ({"messages": [USER, {"role": "assistant", "content": 3}]}, "content is not a string"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, REPLY]}, "content is not a string"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}, REPLY]}, "content is not a string"),
    ({"messages": [{"role": "user", "content": []}, REPLY]}, "content is not a string"),
    ({"messages": [USER, {**REPLY, "reasoning_content": 5}]}, "reasoning_content is not a string"),
    ({"messages": [USER, {**REPLY, "name": ["x"]}]}, "name is not a string"),
    ({"messages": [USER, {"role": "assistant", "content": " \n"}]}, "empty reply"),
    ({"messages": [USER, REPLY], "finished": [True, True]}, "finished does not fit the replies"),
    ({"messages": [USER, REPLY], "finished": [1]}, "finished does not fit the replies"),
    ({"messages": [USER, REPLY], "finished": True}, "finished does not fit the replies"),
    ({"messages": [USER, REPLY], "tools": "no json"}, "tools are not a list of objects"),
    ({"messages": [USER, REPLY], "tools": {"name": "w"}}, "tools are not a list of objects"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": "w"}]}, "tool calls are not a list of objects"),
    ({"messages": [USER, {"from": "function_call", "value": "w()"}]}, "function call is not JSON with a name"),
    ({"messages": [USER, {"from": "function_call", "value": "[]"}]}, "function call is not JSON with a name"),
    ({"messages": [USER, {"from": "function_call", "value": '{"name": 3}'}]}, "function call is not JSON with a name"),
    ({"messages": [{"role": "tool", "content": "9"}, REPLY]}, "tool turn without a call before it"),
    ({"messages": [USER, {"role": "tool", "content": "9"}, REPLY]}, "tool turn without a call before it"),
]


@pytest.mark.parametrize(("row", "reason"), FAULTS)
def test_each_fault_has_its_reason(row, reason):
    with pytest.raises(RowFault) as caught:
        conversation(row)
    assert caught.value.reason == reason
