"""In: a source and its tokenizer. Out: `rendered`, the text and supervised spans of each of its rows that has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.loss_mask import Rendered, render
from specforge.runtime.data.marked import render_by_marks
from specforge.runtime.data.preformatted import QUESTION, ReplyMarks, preformatted, reply_marks
from specforge.runtime.data.report import Tally, short
from specforge.runtime.data.row_fault import RowFault
from specforge.runtime.data.rows import Row
from specforge.settings import SourceSettings

FIRST_ROWS = 8
TAG = re.compile(r"<[^<>\s]+>")


def chat_template(source: SourceSettings, tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    """The template that renders a source; an empty one for rendered rows whose marks are given: it is not asked.

    Raises what ChatTemplate raises, and ValueError where the source's chat family is not the tokenizer's.
    """
    given = source.preformatted and source.reply_header is not None
    template = ChatTemplate(tokenizer, "" if given else source.chat_template)
    if source.chat_family is not None:
        text = template.render([QUESTION, {"role": "assistant", "content": "reply"}])
        foreign = sorted({tag for tag in TAG.findall(text) if tag not in tokenizer.get_vocab()})
        if foreign:
            raise ValueError(
                f"{source.path}: chat_family={source.chat_family!r} writes {', '.join(foreign)}, and the target's "
                f"tokenizer has no such token{'s' * (len(foreign) > 1)}; name the family of this target, or leave "
                "chat_family out for the tokenizer's own template"
            )
    return template


def rendered(
    rows: Iterable[Row], source: SourceSettings, template: ChatTemplate, tally: Tally
) -> Iterator[tuple[int, Rendered]]:
    """The number and the rendering of each row; rows with a fault go to `tally`.

    ValueError, with a rendered row, where the first `FIRST_ROWS` rows hold no reply between the marks: they are wrong.
    """
    renderer = _renderer(source, template)
    missed: list[tuple[int, RowFault]] = []
    found = False
    for row in rows:
        try:
            made = renderer(row.value)
            _encodable(made.text)
        except RowFault as fault:
            if fault.text and not found:
                missed.append((row.number, fault))
                if source.strict or len(missed) == FIRST_ROWS:
                    break
            tally.drop(row.number, fault.reason, fault.detail)
            continue
        found = True
        yield row.number, made
    if missed and not found:
        raise ValueError(_no_reply(source, missed))


def _encodable(text: str) -> None:
    """Raises RowFault for a text that is no Unicode: JSON may hold half of a surrogate pair, tokenizers take none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowFault("half of a surrogate pair", f"{text[error.start : error.end]!r} stands alone") from None


def _renderer(source: SourceSettings, template: ChatTemplate) -> Callable[[Any], Rendered]:
    """What makes text and supervised spans of a row."""
    last, marks = source.last_turn_only, None
    if source.reply_header is not None and source.reply_end is not None:
        marks = ReplyMarks(source.reply_header, source.reply_end)
    if source.preformatted:
        marks = marks or reply_marks(template)
        return lambda value: preformatted(value, marks, last)
    if marks is not None:
        return lambda value: render_by_marks(conversation(value), template, marks, last)
    return lambda value: render(conversation(value), template, last)


def _no_reply(source: SourceSettings, missed: list[tuple[int, RowFault]]) -> str:
    number, fault = missed[0]
    others = f", as for {len(missed) - 1} more of the first rows" if len(missed) > 1 else ""
    fix = "write reply_header and reply_end as they stand in this text"
    if source.reply_header is None:
        fix = "give rows of this chat template, or the marks that stand in this text: reply_header and reply_end"
    lines = [f"{source.path}: row {number}: {fault.reason}: {fault.detail}{others}", f"row {number} renders to:"]
    return "\n".join([*lines, f"  {short(fault.text)}", f"fix: {fix}"])
