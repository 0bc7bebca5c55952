"""In: rendered texts and small templates. Out: checks of where in them the replies are."""

import pytest

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.preformatted import ReplyMarks, preformatted, reply_marks
from specforge.runtime.data.row_fault import RowFault

pytestmark = pytest.mark.cpu
MARKS = ReplyMarks("<a>", "</a>")


@pytest.mark.parametrize(
    ("name", "header", "end"),
    [
        ("chatml", "<|im_start|>assistant\n", "<|im_end|>"),
        ("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        ("plain_text", "assistant:\n", "\n\n"),
    ],
)
def test_a_template_tells_how_a_reply_begins_and_ends(name, header, end, templates, tokenizer):
    assert reply_marks(ChatTemplate(tokenizer, templates[name])) == ReplyMarks(header, end)


@pytest.mark.parametrize("name", ["no_header", "header_unknown"])
def test_a_template_that_does_not_tell_is_refused(name, templates, tokenizer):
    with pytest.raises(ValueError, match="opens and ends a reply") as caught:
        reply_marks(ChatTemplate(tokenizer, templates[name]))
    assert not isinstance(caught.value, RowFault)


def test_a_template_that_ends_the_last_reply_otherwise_is_refused(templates, tokenizer):
    # By the last end, <|eot_id|>, an earlier reply would reach over the question behind it.
    with pytest.raises(ValueError, match=r"ends the last with .*eot_id.* and earlier ones otherwise"):
        reply_marks(ChatTemplate(tokenizer, templates["other_last_end"]))


@pytest.mark.parametrize(
    ("text", "replies"),
    [
        ("u<a>x</a>u<a>y</a>\n", ["x</a>", "y</a>"]),
        ("u<a>x</a>u<a>cut", ["x</a>", "cut"]),
        ("u<a><think>\n\n</think>\n\nx</a>", ["x</a>"]),
        ("u<a>says <a> itself</a>u", ["says <a> itself</a>"]),
    ],
)
def test_replies_are_found_with_their_end(text, replies):
    made = preformatted({"text": text}, MARKS)
    assert made.text == text
    assert [text[a:b] for a, b in made.spans] == replies
    assert [text[a:b] for a, b in preformatted({"text": text}, MARKS, last_turn_only=True).spans] == replies[-1:]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (7, "row is not an object"),
        ({"messages": []}, "text is not a string"),
        ({"text": ["a"]}, "text is not a string"),
        ({"text": ""}, "empty row"),
        ({"text": "nobody replies"}, "no reply in the text"),
    ],
)
def test_a_row_without_replies_is_a_fault(row, reason):
    with pytest.raises(RowFault) as caught:
        preformatted(row, MARKS)
    assert caught.value.reason == reason
