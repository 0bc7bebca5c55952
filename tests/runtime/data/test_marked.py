"""In: conversations, templates and marks. Out: checks of what stands between the marks, and of wrong marks."""

import pytest

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.marked import render_by_marks
from specforge.runtime.data.preformatted import ReplyMarks
from specforge.runtime.data.row_fault import RowFault

pytestmark = pytest.mark.cpu

USER = {"role": "user", "content": "hi you"}
REPLY = {"role": "assistant", "content": "ho. end"}
LAST = {"role": "assistant", "content": "hi ho"}
TWO = {"messages": [USER, REPLY, {"role": "user", "content": "bye"}, LAST]}
END = "<|im_end|>"
MARKS = ReplyMarks("<|im_start|>assistant\n", f"{END}\n")


def supervised(row, template_text, tokenizer, marks=MARKS, last_turn_only=False):
    made = render_by_marks(conversation(row), ChatTemplate(tokenizer, template_text), marks, last_turn_only)
    return [made.text[start:end] for start, end in made.spans]


@pytest.mark.parametrize(
    ("name", "marks", "expected"),
    [
        ("chatml", MARKS, [f"ho. end{END}\n", f"hi ho{END}\n"]),
        ("chatml", ReplyMarks("<|im_start|>assistant\n", END), [f"ho. end{END}", f"hi ho{END}"]),
        ("marks_everything", MARKS, [f"ho. end{END}\n", f"hi ho{END}\n"]),
        ("empty_thinking", MARKS, [f"ho. end{END}\n", f"hi ho{END}\n"]),
        ("plain_text", ReplyMarks("assistant:\n", "\n\n"), ["ho. end\n\n", "hi ho\n\n"]),
        ("no_header", ReplyMarks("[/INST]", END), [f" ho. end{END}", f" hi ho{END}"]),
    ],
)
def test_a_reply_is_what_stands_from_header_through_end(name, marks, expected, templates, tokenizer):
    assert supervised(TWO, templates[name], tokenizer, marks) == expected
    assert supervised(TWO, templates[name], tokenizer, marks, last_turn_only=True) == expected[-1:]


def test_a_template_without_growing_prefixes_can_be_learned(templates, tokenizer):
    row = {"messages": [USER, {**REPLY, "reasoning_content": "hm"}, TWO["messages"][2], LAST]}
    assert supervised(row, templates["last_reasoning"], tokenizer) == [f"ho. end{END}\n", f"hi ho{END}\n"]


def test_the_last_reply_keeps_its_reasoning_or_is_a_fault_of_the_row(templates, tokenizer):
    row = {"messages": [USER, {**REPLY, "reasoning_content": "hm"}]}
    assert supervised(row, templates["last_reasoning"], tokenizer) == [f"<think>hm</think>ho. end{END}\n"]
    with pytest.raises(RowFault, match="the template writes no reasoning: turn 2"):
        supervised(row, templates["chatml"], tokenizer)


def test_a_cut_reply_has_no_end_of_turn(templates, tokenizer):
    assert supervised({**TWO, "finished": [False, True]}, templates["chatml"], tokenizer) == [
        "ho. end",
        f"hi ho{END}\n",
    ]
    asked = {"function": {"name": "w", "arguments": {"city": "Ulm"}}}
    call = {"role": "assistant", "content": None, "tool_calls": [asked]}
    row = {"messages": [USER, call]}
    assert supervised(row, templates["tools"], tokenizer) == [f"<call>w Ulm</call>{END}\n"]
    with pytest.raises(RowFault, match="end of a cut reply not found"):
        supervised({**row, "finished": [False]}, templates["tools"], tokenizer)


@pytest.mark.parametrize(
    ("row", "name", "marks", "reason", "shows"),
    [
        (TWO, "chatml", ReplyMarks("<x>", END), "no reply in the text", True),
        (TWO, "chatml", ReplyMarks(MARKS.header, "<x>"), "marks do not fit the replies", True),
        (
            {"messages": TWO["messages"][:2]},
            "chatml",
            ReplyMarks(MARKS.header, "<x>"),
            "no end of turn behind a reply",
            True,
        ),
        (TWO, "last_two", MARKS, "marks do not fit the replies", True),
        (TWO, "chatml", ReplyMarks("<|im_start|>", END), "marks do not fit the replies", True),
        ({"messages": [{**USER, "content": "say <x>"}, REPLY]}, "chatml", ReplyMarks("<x>", END), "reply mark", False),
        ({"messages": [USER, {**REPLY, "content": "a\n\nb"}]}, "plain_text", ReplyMarks("a:", "\n\n"), "reply", False),
        ({"messages": [USER, {**REPLY, "content": END}]}, "chatml", MARKS, "control token in a message", False),
    ],
)
def test_marks_that_do_not_fit_are_a_fault_of_the_row(row, name, marks, reason, shows, templates, tokenizer):
    with pytest.raises(RowFault) as caught:
        supervised(row, templates[name], tokenizer, marks)
    assert caught.value.reason.startswith(reason)
    assert bool(caught.value.text) == shows
