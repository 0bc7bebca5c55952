"""In: a conversation and a chat template. Out: its text, what of it is supervised, and that as a mask over tokens.

Supervised are the assistant's replies including their end-of-turn token, without header, empty think block and what the
template writes after the end of turn. Legend: T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import Conversation
from specforge.runtime.data.row_fault import RowFault

EMPTY_THINKING = re.compile(r"\s*(<think>)?\s*</think>\s*")  # some templates write it; the target did not say it


@attrs.frozen
class Rendered:
    """A conversation as text, and the character spans [start, end) of it that carry loss, ascending."""

    text: str
    spans: tuple[tuple[int, int], ...]


@attrs.frozen
class _Turn:
    """One reply in the text: [start, end) as the template wrote it. `content_end`: None where it cannot be told."""

    start: int
    content_end: int | None
    end: int


def render(conversation: Conversation, template: ChatTemplate, last_turn_only: bool = False) -> Rendered:
    """Render a conversation and find its supervised spans: all its replies, or the last only.

    From generation markers where they give a sane mask (neither nothing nor everything, one span a reply), else from
    growing prefixes, each of which must be a prefix of the whole. Raises RowFault where neither tells. With
    `last_turn_only` nothing is asked of the earlier replies: a template may render them otherwise.
    """
    refuse_control(conversation, template)
    text = template.render(conversation.messages, conversation.tools)
    taken = slice(-1, None) if last_turn_only else slice(None)
    turns = _marked(conversation, template, text) if template.has_markers else None
    tells_end = turns is not None
    if turns is None:
        turns = [_by_prefix(conversation, template, text, i) for i in conversation.replies[taken]]
    else:
        turns = turns[taken]
    refuse_lost(conversation, text, conversation.replies[taken])
    for turn, reply in zip(turns, conversation.replies[taken]):
        refuse_lost_calls(conversation.messages[reply], text[turn.start : turn.end], reply + 1)
    finished = conversation.finished[taken]
    ends = [_end(text, turn, whole, keep_tail=tells_end) for turn, whole in zip(turns, finished)]
    return Rendered(text, tuple((turn.start, end) for turn, end in zip(turns, ends)))


def refuse_control(conversation: Conversation, template: ChatTemplate) -> None:
    """Raises RowFault where a message holds a control token: it would become a real one, and a turn nobody took."""
    for number, message in enumerate(conversation.messages, start=1):
        found = template.control.search(message["content"] + message.get("reasoning_content", ""))
        if found:
            raise RowFault("control token in a message", f"turn {number} holds {found[0]!r}")


def refuse_lost(conversation: Conversation, text: str, replies: Iterable[int]) -> None:
    """Raises RowFault where the template leaves out the tools, or the reasoning of one of `replies`.

    What is left is a chat that the target never had: calls of tools it was not shown, answers without their thinking.
    """
    for name in filter(None, map(_function_name, conversation.tools)):
        if name not in text:
            raise RowFault("the template writes no tools", f"the row has {name!r}")
    for reply in replies:
        if conversation.messages[reply].get("reasoning_content", "").strip() not in text:
            raise RowFault("the template writes no reasoning", f"turn {reply + 1} has reasoning_content")


def refuse_lost_calls(message: dict[str, Any], said: str, number: int) -> None:
    """Raises RowFault where the template leaves tool calls out: what is left would teach that nothing is said."""
    for name in filter(None, map(_function_name, message.get("tool_calls", ()))):
        if name not in said:
            raise RowFault("the template writes no tool calls", f"turn {number} calls {name!r}")


def _function_name(tool: dict[str, Any]) -> str | None:
    """Of a tool or of a call, in OpenAI's form or the function alone."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def token_mask(rendered: Rendered, offsets_T2: np.ndarray) -> np.ndarray:
    """bool [T]: tokens that stand inside a span. `offsets_T2`: where in the text each token begins and ends.

    A token that reaches into a span from before it is outside, since the prompt holds it, unless all it has from there
    are spaces: tokenizers join the one behind "Assistant: " with the reply's first word. One that begins inside
    is in. Byte-level tokenizers may trim white space off the offsets and leave (end, end) of a white token: it is
    inside where a span has it, and outside where it is the last of the header.
    """
    begin_T, end_T = offsets_T2[:, 0], offsets_T2[:, 1]
    mask_T = np.zeros(len(offsets_T2), np.bool_)
    for start, stop in rendered.spans:
        spaced = len(rendered.text[:start].rstrip(" "))
        mask_T |= (begin_T >= spaced) & (end_T > start) & ((begin_T < stop) | (end_T <= stop))
    return mask_T


def _marked(conversation: Conversation, template: ChatTemplate, text: str) -> list[_Turn] | None:
    marked, spans = template.render_marked(conversation.messages, conversation.tools)
    covered = sum(end - start for start, end in spans)
    if marked != text or len(spans) != len(conversation.finished) or not 0 < covered < len(text):
        return None
    eos = template.tokenizer.eos_token
    turns = []
    for (start, end), reply in zip(spans, conversation.replies):
        begin, content_end = _content(text, start, end, conversation.messages[reply])
        if eos and text.startswith(eos, end):
            end += len(eos)  # markers around the text alone: the end of turn belongs to the reply
        turns.append(_Turn(begin, content_end, end))
    return turns


def _by_prefix(conversation: Conversation, template: ChatTemplate, text: str, reply: int) -> _Turn:
    messages, tools = conversation.messages, conversation.tools
    before = template.render(messages[:reply], tools, reply_header=True)
    if not text.startswith(before):
        raise RowFault("prefix is not in the full rendering", f"the turns before turn {reply + 1} render otherwise")
    last = reply == len(messages) - 1
    through = text if last else template.render(messages[: reply + 1], tools)
    whole = text.startswith(through) and len(through) > len(before)
    begin, content_end = _content(text, len(before), len(through) if whole else len(text), messages[reply])
    if not template.writes_header and content_end is not None:
        begin = text.index(messages[reply]["content"].strip(), begin, content_end)
    if whole:
        return _Turn(begin, content_end, len(through))
    # A last turn that ends otherwise than earlier ones is no prefix; the reply still is where it should be, verbatim.
    ending = re.compile(rf"\s*(?:{template.control.pattern})").match(text, content_end or 0)
    plain = not messages[reply].keys() & {"reasoning_content", "tool_calls"}
    content = messages[reply]["content"].strip()
    if plain and content_end is not None and ending and text[begin:content_end].strip() == content:
        return _Turn(begin, content_end, ending.end())
    raise RowFault("prefix is not in the full rendering", f"turn {reply + 1} renders otherwise when it is the last")


def _content(text: str, start: int, end: int, message: dict[str, Any]) -> tuple[int, int | None]:
    """Where a reply begins behind an empty think block, and where its content ends (None: not verbatim, or calls)."""
    empty = EMPTY_THINKING.match(text, start, end)
    begin = empty.end() if empty else start
    if "tool_calls" in message:
        return begin, None
    search = begin
    reasoning = message.get("reasoning_content", "").strip()
    if reasoning:
        at = text.find(reasoning, begin, end)
        search = at + len(reasoning) if at >= 0 else begin
    for content in (message["content"], message["content"].strip()):
        at = text.find(content, search, end)
        if at >= 0:
            return begin, at + len(content)
    return begin, None


def _end(text: str, turn: _Turn, finished: bool, keep_tail: bool) -> int:
    """Where the supervised part of a reply ends: after its end of turn, or before it where the reply was cut."""
    if not finished:
        if turn.content_end is None:
            raise RowFault("end of a cut reply not found", "the template changes its text, or it ends in tool calls")
        return turn.content_end
    if keep_tail:
        return turn.end
    begin = turn.start if turn.content_end is None else turn.content_end
    tail = text[begin : turn.end].rstrip()
    return begin + len(tail) if tail else turn.end
