"""In: a row of rendered text, and how a template opens and ends a reply. Out: `Rendered`, with supervised spans."""

from __future__ import annotations

from typing import Any

import attrs

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.loss_mask import EMPTY_THINKING, Rendered
from specforge.runtime.data.row_fault import RowFault

QUESTION = {"role": "user", "content": "?"}
REPLY = "reply"


@attrs.frozen
class ReplyMarks:
    """`header` stands before each reply of the assistant, `end` behind it; `end` belongs to the reply."""

    header: str
    end: str


def reply_marks(template: ChatTemplate) -> ReplyMarks:
    """How `template` opens and ends a reply. Raises ValueError where it does not tell."""
    before, opened = template.render([QUESTION]), template.render([QUESTION], reply_header=True)
    whole = template.render([QUESTION, {"role": "assistant", "content": REPLY}])
    header = opened[len(before) :].rstrip() if opened.startswith(before) else ""
    tail = whole.rpartition(REPLY)[2]
    if not header or not tail:
        raise ValueError(
            "preformatted rows need a chat template that opens and ends a reply, to find replies by; this one writes "
            f"{header!r} before and {tail!r} behind. Give another: Conversations(..., chat_template='...'), "
            "or name the marks: reply_header='...', reply_end='...'"
        )
    marks = ReplyMarks(opened[len(before) :], tail.rstrip() or tail)
    twice = template.render([QUESTION, {"role": "assistant", "content": REPLY}] * 2)
    if twice.count(f"{REPLY}{marks.end}") != 2:  # a reply would be taken to reach over the next question
        raise ValueError(
            f"preformatted rows need a chat template that ends every reply alike; this one ends the last with {tail!r} "
            "and earlier ones otherwise. Name the marks: Conversations(..., reply_header='...', reply_end='...')"
        )
    return marks


def preformatted(value: Any, marks: ReplyMarks, last_turn_only: bool = False) -> Rendered:
    """The text of a row {"text": ...}, with each reply from behind `header` through `end`, or the last only.

    A reply without `end` was cut, and reaches to the end of the text. Raises RowFault where there is no text.
    """
    if not isinstance(value, dict):
        raise RowFault("row is not an object", f"it is {type(value).__name__}")
    text = value.get("text")
    if not isinstance(text, str):
        raise RowFault("text is not a string", f"it is {type(text).__name__}; the row's keys are {sorted(value)}")
    if not text:
        raise RowFault("empty row", "text is empty")
    spans: list[tuple[int, int]] = []
    at = 0
    while (found := text.find(marks.header, at)) >= 0:
        begin = found + len(marks.header)
        empty = EMPTY_THINKING.match(text, begin)
        begin = empty.end() if empty else begin
        stop = text.find(marks.end, begin)
        at = len(text) if stop < 0 else stop + len(marks.end)
        spans.append((begin, at))
    if not spans:
        raise RowFault("no reply in the text", f"{marks.header!r} does not stand in it", text)
    return Rendered(text, tuple(spans[-1:] if last_turn_only else spans))
