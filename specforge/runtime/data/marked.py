"""In: a conversation, a chat template and two marks. Out: `Rendered`; a reply is what stands between the marks."""

from __future__ import annotations

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import Conversation
from specforge.runtime.data.loss_mask import Rendered, refuse_control, refuse_lost, refuse_lost_calls
from specforge.runtime.data.preformatted import ReplyMarks, preformatted
from specforge.runtime.data.row_fault import RowFault


def render_by_marks(
    conversation: Conversation, template: ChatTemplate, marks: ReplyMarks, last_turn_only: bool = False
) -> Rendered:
    """The whole rendering, with each reply from behind the header through its end, or the last only.

    A cut reply loses its end. Raises RowFault where the text does not hold one pair of marks for each reply, and
    where a message holds a mark.
    """
    refuse_control(conversation, template)
    for number, message in enumerate(conversation.messages, start=1):
        said = message["content"] + message.get("reasoning_content", "")
        for mark in (marks.header, marks.end):
            if (mark.strip() or mark) in said:
                raise RowFault("reply mark in a message", f"turn {number} holds {mark!r}")
    text = template.render(conversation.messages, conversation.tools)
    spans = preformatted({"text": text}, marks).spans
    replies = len(conversation.replies)
    if len(spans) != replies:
        detail = f"{replies} replies, and {marks.header!r} opens {len(spans)}"
        raise RowFault("marks do not fit the replies", detail, text)
    refuse_lost(conversation, text, conversation.replies[-1:])  # of earlier ones, templates drop the reasoning
    found = []
    for (start, end), reply, whole in zip(spans, conversation.replies, conversation.finished):
        if not text.endswith(marks.end, start, end):
            raise RowFault("no end of turn behind a reply", f"{marks.end!r} does not stand in the text", text)
        refuse_lost_calls(conversation.messages[reply], text[start:end], reply + 1)
        if not whole and "tool_calls" in conversation.messages[reply]:
            raise RowFault("end of a cut reply not found", "it ends in tool calls")
        found.append((start, end if whole else end - len(marks.end)))
    return Rendered(text, tuple(found[-1:] if last_turn_only else found))
