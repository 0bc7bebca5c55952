"""In: small source files. Out: checks of what is kept, dropped by reason, truncated and reported."""

import json
from copy import deepcopy

import attrs
import pytest
from tokenizers import processors

from specforge.runtime.data.report import Report
from specforge.runtime.data.row_fault import RowFault
from specforge.runtime.data.source import ONLY_LAST, prepare
from specforge.settings import SourceSettings

pytestmark = pytest.mark.cpu

VOCAB = 300
USER = {"role": "user", "content": "hi you"}
REPLY = {"role": "assistant", "content": "ho. end"}
GOOD = {"messages": [USER, REPLY]}


@pytest.fixture
def prepared(write_rows, templates, tokenizer):
    """Write rows, prepare them: `prepared(rows, template name or None for pre-tokenised rows, changed settings)`."""

    def run(rows, template="chatml", **changes):
        path = write_rows(rows)
        kind = "prompts" if template is None else "conversations"
        settings = SourceSettings(kind, path.name, 1000, None, templates.get(template), False, False, False)
        vocab_size = changes.pop("vocab_size", VOCAB)
        tokens_by = changes.pop("tokenizer", None if template is None else tokenizer)
        return prepare(attrs.evolve(settings, **changes), path.parent, tokens_by, vocab_size)

    return run


def test_documents_are_whole_numbered_and_masked(prepared, tokenizer):
    made = prepared([GOOD, {"messages": []}, {**GOOD, "finished": [False]}])
    assert [d.index for d in made.documents] == [0, 1]
    assert made.rows == (1, 3)
    first, cut = made.documents
    before = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi you<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(first.tokens) == before + "ho. end<|im_end|>\n"
    assert tokenizer.decode(first.tokens[first.loss_mask]) == "ho. end<|im_end|>"
    assert tokenizer.decode(cut.tokens[cut.loss_mask]) == "ho. end"
    assert first.tokens.tolist() == cut.tokens.tolist()
    report = made.report
    assert (report.rows, report.kept, report.truncated) == (3, 2, 0)
    assert report.tokens == 2 * len(first.tokens)
    assert report.supervised == first.supervised + cut.supervised == 8 + 7
    assert report.share == 15 / report.tokens


def test_faults_are_counted_by_reason_with_the_first_rows(prepared):
    bad = [{"messages": [REPLY]}] * 5 + [{"messages": [USER]}, 7, {"messages": [USER, USER, REPLY]}]
    report = prepared([bad[0], GOOD, *bad[1:]]).report
    assert [(d.reason, d.count, d.rows) for d in report.dropped] == [
        ("begins with assistant", 5, (1, 3, 4)),
        ("no assistant turn", 1, (7,)),
        ("repeated role", 1, (9,)),
        ("row is not an object", 1, (8,)),
    ]
    assert report.rows == 9
    assert report.kept == 1
    assert "9 rows, 1 kept, 8 dropped" in report.text()
    assert "dropped 5: begins with assistant (rows 1, 3, 4, ...)" in report.text()
    assert "dropped 1: repeated role (row 9): two user turns in a row" in report.text()
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize("template", ["chatml", "llama3", "marked_content", "plain_text", "empty_thinking"])
@pytest.mark.parametrize("last", [False, True])
def test_preformatted_text_gives_the_documents_of_its_turns(prepared, tokenizer, templates, template, last):
    turns = [USER, REPLY, USER, {"role": "assistant", "content": "hi ho"}]
    text = tokenizer.apply_chat_template(turns, chat_template=templates[template], tokenize=False)
    (made,) = prepared([{"text": text}], template, preformatted=True, last_turn_only=last).documents
    (turned,) = prepared([{"messages": turns}], template, last_turn_only=last).documents
    assert made.tokens.tolist() == turned.tokens.tolist()
    assert made.loss_mask.tolist() == turned.loss_mask.tolist()


def test_rows_of_turns_are_no_preformatted_rows(prepared):
    with pytest.raises(ValueError, match="text is not a string") as caught:
        prepared([GOOD], preformatted=True)
    assert 'fix: rows are {"text": ...}' in str(caught.value)


def test_only_the_last_turn_is_supervised_where_it_is_asked_for(prepared, tokenizer):
    turns = [USER, REPLY, USER, {"role": "assistant", "content": "hi ho"}]
    (last,) = prepared([{"messages": turns}], last_turn_only=True).documents
    (every,) = prepared([{"messages": turns}]).documents
    assert last.tokens.tolist() == every.tokens.tolist()
    assert tokenizer.decode(every.tokens[every.loss_mask]) == "ho. end<|im_end|>hi ho<|im_end|>"
    assert tokenizer.decode(last.tokens[last.loss_mask]) == "hi ho<|im_end|>"


@pytest.mark.parametrize(
    ("rows", "template", "changes", "said"),
    [
        ([GOOD, {"messages": [USER, USER, REPLY]}], "chatml", {}, "row 2: repeated role: two user turns in a row; "),
        ([GOOD, {"messages": [REPLY]}], "chatml", {}, "row 2: begins with assistant; correct the row"),
        ([GOOD], "chatml", {"max_length": 9}, "row 1: no supervised tokens left by max_length: "),
        ([GOOD], "chatml", {"vocab_size": 50}, "row 1: token id outside the vocabulary: "),
        ([{"input_ids": [1, 2], "loss_mask": [1]}], None, {}, "row 1: lengths differ: 2 input_ids, 1 loss_mask; "),
    ],
)
def test_a_strict_source_stops_at_a_fault_with_row_and_reason(prepared, rows, template, changes, said):
    with pytest.raises(ValueError, match="or set strict=False") as caught:
        prepared(rows, template, strict=True, **changes)
    assert str(caught.value).startswith(f"rows.jsonl: {said}")
    assert not isinstance(caught.value, RowFault)


def test_a_strict_source_without_faults_is_as_any_other(prepared):
    (strict,), (other,) = prepared([GOOD], strict=True).documents, prepared([GOOD]).documents
    assert strict.tokens.tolist() == other.tokens.tolist()
    assert strict.loss_mask.tolist() == other.loss_mask.tolist()


def test_one_row_that_the_template_refuses_costs_that_row_only(prepared):
    made = prepared([GOOD, {"messages": [{"role": "user", "content": "forbidden"}, REPLY]}, GOOD], "no_users")
    assert made.rows == (1, 3)
    assert [(d.reason, d.rows) for d in made.report.dropped] == [("template raised", (2,))]


def test_truncation_is_on_the_right_counted_and_drops_what_lost_all_supervision(prepared):
    whole = prepared([GOOD]).documents[0]
    first = int(whole.loss_mask.argmax())
    long = {"messages": [{"role": "user", "content": "x" * 50}, REPLY]}
    made = prepared([GOOD, long], max_length=first + 2)
    (kept,) = made.documents
    assert kept.tokens.tolist() == whole.tokens[: first + 2].tolist()
    assert kept.supervised == 1
    assert made.report.truncated == 1
    assert [(d.reason, d.rows) for d in made.report.dropped] == [("no supervised tokens left by max_length", (2,))]
    # the last row of a document has no next state: one supervised token at the end carries no loss
    with pytest.raises(ValueError, match="raise max_length"):
        prepared([GOOD], max_length=first + 1)


def test_max_rows_counts_rows_read(prepared):
    made = prepared([GOOD, {"messages": []}, GOOD, GOOD], max_rows=3)
    assert made.rows == (1, 3)
    assert made.report.rows == 3


def test_more_rows_than_one_call_of_the_tokenizer(prepared):
    rows = [
        {"messages": [{"role": "user", "content": f"hi {i}"}, {"role": "assistant", "content": f"ho {i}"}]}
        for i in range(600)
    ]
    made = prepared(rows)
    assert made.rows == tuple(range(1, 601))
    assert [d.supervised for d in made.documents] == [len(f"ho {i}") + 1 for i in range(600)]


def test_the_tokenizer_adds_no_tokens_of_its_own(prepared, tokenizer):
    plain = prepared([GOOD]).documents[0]
    adding = deepcopy(tokenizer)
    adding.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|eot_id|>",
        special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in ("<|begin|>", "<|eot_id|>")],
    )
    assert adding("hi")["input_ids"][0] == tokenizer.convert_tokens_to_ids("<|begin|>")
    made = prepared([GOOD], tokenizer=adding).documents[0]
    assert made.tokens.tolist() == plain.tokens.tolist()
    assert made.loss_mask.tolist() == plain.loss_mask.tolist()


def test_prompts_need_no_tokenizer(prepared):
    good = {"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 1, 0]}
    rows = [
        good,
        {**good, "loss_mask": [0, 0, 0, 1]},
        {**good, "loss_mask": [True] * 4},
        {**good, "input_ids": [1, 2, 3, 999]},
    ]
    made = prepared(rows, None)
    assert made.rows == (1,)
    assert made.documents[0].tokens.tolist() == [5, 6, 7, 8]
    assert made.documents[0].supervised == made.report.supervised == 2
    assert {d.reason: d.rows for d in made.report.dropped} == {
        ONLY_LAST: (2,),
        "loss_mask holds no integers": (3,),
        "token id outside the vocabulary": (4,),
    }


def test_all_dropped_by_rendering_shows_a_rendered_row_its_mask_the_counts_and_the_fix(prepared):
    with pytest.raises(ValueError) as caught:
        prepared([GOOD, {"messages": []}, GOOD], max_length=20)
    assert str(caught.value).splitlines() == [
        "rows.jsonl: all 3 rows were dropped, nothing is left to train on",
        "  2: no supervised tokens left by max_length (rows 1, 3): 50 tokens, max_length 20",
        "  1: empty row (row 2): no messages or conversations; its keys are ['messages']",
        "row 1 renders to:",
        "  <|im_start|>system",
        "  be kind<|im_end|>",
        "  <|im_start|>user",
        "  hi you<|im_end|>",
        "  <|im_start|>assistant",
        "  ho. end<|im_end|>",
        "  ",
        "its mask, 50 tokens (1: supervised), cut at 20:",
        "  41×0 8×1 1×0",
        "fix: raise max_length (now 20), so that a reply fits in",
    ]


def test_all_dropped_before_rendering_shows_the_row_itself(prepared):
    with pytest.raises(ValueError, match=r"rows\.jsonl: its only row was dropped") as caught:
        prepared([{"text": "hi"}])
    assert 'row 1 of the file:\n  {"text": "hi"}' in str(caught.value)
    assert 'fix: rows are {"messages": [{"role", "content"}, ...]}' in str(caught.value)


def test_all_prompts_dropped_shows_tokens_and_mask(prepared):
    with pytest.raises(ValueError, match="no supervised tokens") as caught:
        prepared([{"input_ids": [5, 6, 7], "loss_mask": [0, 0, 0]}], None)
    assert "row 1 holds the tokens:\n  [5, 6, 7]\nits mask, 3 tokens (1: supervised), cut at 1000:\n  3×0" in str(
        caught.value
    )


def test_a_row_of_which_only_the_last_token_is_supervised_says_so(prepared):
    with pytest.raises(ValueError, match="1: only the last token is supervised, and it never counts") as caught:
        prepared([{"input_ids": [1, 5], "loss_mask": [0, 1]}], None)
    assert str(caught.value).endswith("fix: supervise a token before the last one")


def test_a_tokenizer_of_another_target_is_told(prepared):
    with pytest.raises(ValueError, match="use the tokenizer") as caught:
        prepared([GOOD], vocab_size=100)
    assert "is not in [0, 100): the tokenizer is not this target's" in str(caught.value)


def test_no_rows_and_no_tokenizer_are_errors(prepared):
    with pytest.raises(ValueError, match=r"rows\.jsonl: has no rows"):
        prepared([])
    with pytest.raises(ValueError, match="conversations need the target's tokenizer"):
        prepared([GOOD], tokenizer=None)
