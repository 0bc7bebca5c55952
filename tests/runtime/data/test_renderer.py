"""In: sources whose marks are given. Out: checks of what they become, and of the message where the marks are wrong."""

from copy import deepcopy

import attrs
import pytest

from specforge.runtime.data.cache import Preparation
from specforge.runtime.data.renderer import FIRST_ROWS
from specforge.runtime.data.source import prepare
from specforge.settings import SourceSettings

pytestmark = pytest.mark.cpu

USER = {"role": "user", "content": "hi you"}
GOOD = {"messages": [USER, {"role": "assistant", "content": "ho"}]}
HEADER = "<|im_start|>assistant\n"
END = "<|im_end|>"


@pytest.fixture
def prepared(write_rows, templates, tokenizer):
    """`prepared(rows, changed settings)`: rows of a source with the marks of ChatML."""

    def run(rows, **changes):
        path = write_rows(rows)
        plain = SourceSettings("conversations", path.name, 1000, None, templates["chatml"], False, False, False)
        source = attrs.evolve(plain, **{"reply_header": HEADER, "reply_end": END, **changes})
        return prepare(source, path.parent, tokenizer, 300)

    return run


def taught(made, tokenizer):
    return [tokenizer.decode(d.tokens[d.loss_mask]) for d in made.documents]


@pytest.mark.parametrize("changes", [{}, {"reply_header": None, "reply_end": None}])
def test_half_of_a_surrogate_pair_is_a_fault_of_its_row(prepared, changes):
    bad = {"messages": [{"role": "user", "content": "a \ud83d b"}, GOOD["messages"][1]]}
    made = prepared([bad, GOOD], **changes)
    assert [(d.reason, d.count, list(d.rows)) for d in made.report.dropped] == [("half of a surrogate pair", 1, [1])]


def test_marks_give_the_documents_that_the_template_itself_tells(prepared):
    rows = [GOOD, {**GOOD, "finished": [False]}]
    marked, told = prepared(rows), prepared(rows, reply_header=None, reply_end=None)
    assert [d.tokens.tolist() for d in marked.documents] == [d.tokens.tolist() for d in told.documents]
    assert [d.loss_mask.tolist() for d in marked.documents] == [d.loss_mask.tolist() for d in told.documents]


def test_rendered_rows_with_marks_need_no_template(prepared, tokenizer):
    assert not tokenizer.chat_template
    text = f"<|im_start|>user\nhi{END}\n{HEADER}ho{END}\n"
    made = prepared([{"text": text}], preformatted=True, chat_template=None)
    assert taught(made, tokenizer) == [f"ho{END}"]
    assert tokenizer.decode(made.documents[0].tokens) == text


def test_rendered_rows_with_marks_have_a_key_of_the_cache_without_a_template(write_rows, tokenizer):
    path = write_rows([{"text": "hi"}])
    source = SourceSettings("conversations", path.name, 1000, None, None, False, False, True, None, HEADER, END)
    templated = deepcopy(tokenizer)
    templated.chat_template = "{{ messages[0].content }}"
    keys = {Preparation(source, path.parent, given, 300).key for given in (tokenizer, templated)}
    assert len(keys) == 1


MESSAGE = [
    "rows.jsonl: row 1: no reply in the text: '<|assistant|>' does not stand in it",
    "row 1 renders to:",
    "  <|im_start|>system",
    "  be kind<|im_end|>",
    "  <|im_start|>user",
    "  hi you<|im_end|>",
    "  <|im_start|>assistant",
    "  ho<|im_end|>",
    "  ",
    "fix: write reply_header and reply_end as they stand in this text",
]


@pytest.mark.parametrize(
    ("count", "strict", "more"),
    [
        (1, False, ""),
        (3, False, ", as for 2 more of the first rows"),
        (FIRST_ROWS + 5, False, f", as for {FIRST_ROWS - 1} more of the first rows"),
        (3, True, ""),
    ],
)
def test_a_header_that_the_first_rows_do_not_hold_stops_and_shows_a_rendered_row(prepared, count, strict, more):
    with pytest.raises(ValueError, match="no reply in the text") as caught:
        prepared([GOOD] * count, reply_header="<|assistant|>", strict=strict)
    assert str(caught.value).splitlines() == [MESSAGE[0] + more, *MESSAGE[1:]]


def test_an_end_that_the_first_rows_do_not_hold_stops_too(prepared):
    with pytest.raises(ValueError, match="no end of turn behind a reply: '<end>' does not stand") as caught:
        prepared([GOOD], reply_end="<end>")
    assert str(caught.value).splitlines()[1:] == MESSAGE[1:]


def test_rows_before_and_behind_a_row_that_holds_the_header_are_dropped_and_counted(prepared):
    good, other = {"text": f"u{HEADER}ho{END}"}, {"text": "nobody replies"}
    made = prepared([other] * (FIRST_ROWS - 1) + [good] + [other] * FIRST_ROWS, preformatted=True)
    assert made.rows == (FIRST_ROWS,)
    assert [(d.reason, d.count) for d in made.report.dropped] == [("no reply in the text", 2 * FIRST_ROWS - 1)]


def test_rendered_rows_of_another_template_show_a_row_and_name_the_marks(prepared):
    with pytest.raises(ValueError, match="row 1 renders to:\n  <a>hi</a>\nfix: give rows of this chat template, or"):
        prepared([{"text": "<a>hi</a>"}], preformatted=True, reply_header=None, reply_end=None)


def test_other_faults_before_the_first_reply_stay_faults_of_rows(prepared):
    with pytest.raises(ValueError, match=r"rows\.jsonl: all 9 rows were dropped"):
        prepared([{"messages": []}] * 9, reply_header="<|assistant|>")
