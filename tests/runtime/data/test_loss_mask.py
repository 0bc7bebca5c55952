"""In: conversations, templates and small tokenizers. Out: checks of which text and which tokens are supervised."""

import numpy as np
import pytest

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.loss_mask import Rendered, render, token_mask
from specforge.runtime.data.row_fault import RowFault

pytestmark = pytest.mark.cpu

ONE = {"messages": [{"role": "user", "content": "hi you"}, {"role": "assistant", "content": "ho. end"}]}
TWO = {
    "messages": [
        {"role": "system", "content": "be"},
        *ONE["messages"],
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "hi ho"},
    ]
}
END = "<|im_end|>"


def supervised(row, template_text, tokenizer, last_turn_only=False):
    made = render(conversation(row), ChatTemplate(tokenizer, template_text), last_turn_only)
    return [made.text[start:end] for start, end in made.spans]


CASES = [
    ("chatml", [f"ho. end{END}", f"hi ho{END}"]),
    ("llama3", ["ho. end<|eot_id|>", "hi ho<|eot_id|>"]),
    ("marked", [f"ho. end{END}\n", f"hi ho{END}\n"]),
    ("marked_content", [f"ho. end{END}", f"hi ho{END}"]),
    ("marked_bos", [f"ho. end{END}\n", f"hi ho{END}\n"]),
    ("marks_nothing", [f"ho. end{END}", f"hi ho{END}"]),
    ("marks_everything", [f"ho. end{END}", f"hi ho{END}"]),
    ("other_last_end", [f"ho. end{END}", "hi ho<|eot_id|>"]),
    ("empty_thinking", [f"ho. end{END}", f"hi ho{END}"]),
    ("header_unknown", [f"ho. end{END}", f"hi ho{END}"]),
    ("plain_text", ["ho. end\n\n", "hi ho\n\n"]),
    ("dated", [f"ho. end{END}", f"hi ho{END}"]),
]


@pytest.mark.parametrize(("name", "expected"), CASES)
def test_replies_with_their_end_of_turn_and_nothing_else(name, expected, templates, tokenizer):
    assert supervised(TWO, templates[name], tokenizer) == expected
    assert supervised(ONE, templates[name], tokenizer) == [expected[0].replace(END, expected[1][5:].strip() or END)]


@pytest.mark.parametrize(("name", "expected"), CASES)
def test_the_last_reply_alone(name, expected, templates, tokenizer):
    assert supervised(TWO, templates[name], tokenizer, last_turn_only=True) == expected[1:]
    goes_on = {"messages": [*TWO["messages"], {"role": "user", "content": "ho"}]}
    every = supervised(goes_on, templates[name], tokenizer)
    assert supervised(goes_on, templates[name], tokenizer, last_turn_only=True) == every[-1:]


@pytest.mark.parametrize("name", ["chatml", "marked"])
def test_whether_the_last_reply_was_cut_is_its_own(name, templates, tokenizer):
    row = {**TWO, "finished": [True, False]}
    assert supervised(row, templates[name], tokenizer, last_turn_only=True) == ["hi ho"]
    assert supervised({**TWO, "finished": [False, True]}, templates[name], tokenizer, last_turn_only=True) != ["hi ho"]


def test_a_template_that_writes_no_header_gives_the_reply_alone(templates, tokenizer):
    assert supervised(ONE, templates["no_header"], tokenizer) == [f"ho. end{END}"]


@pytest.mark.parametrize("name", ["chatml", "llama3", "marked", "marked_content", "other_last_end", "plain_text"])
def test_a_cut_reply_has_no_end_of_turn(name, templates, tokenizer):
    texts = supervised({**TWO, "finished": [False, False]}, templates[name], tokenizer)
    assert texts == ["ho. end", "hi ho"]
    only_last = supervised({**TWO, "finished": [True, False]}, templates[name], tokenizer)
    assert only_last[0] == supervised(TWO, templates[name], tokenizer)[0]
    assert only_last[1] == "hi ho"


@pytest.mark.parametrize("reply", ["end", "<|im", "a", "assistant", "hi\n", " hi", "user\nhi you"])
def test_a_reply_that_also_stands_elsewhere_is_found_where_it_is(reply, templates, tokenizer):
    row = {"messages": [{"role": "user", "content": reply or "?"}, {"role": "assistant", "content": reply}]}
    assert supervised(row, templates["chatml"], tokenizer) == [f"{reply}{END}"]
    assert supervised({**row, "finished": [False]}, templates["chatml"], tokenizer) == [reply]


def test_reasoning_is_in_the_mask(templates, tokenizer):
    row = {"messages": [ONE["messages"][0], {**ONE["messages"][1], "reasoning_content": "say ho. end"}]}
    thought = "<think>\nsay ho. end\n</think>\n\nho. end"
    assert supervised(row, templates["reasoning"], tokenizer) == [thought + END]
    assert supervised({**row, "finished": [False]}, templates["reasoning"], tokenizer) == [thought]


def test_tool_calls_are_in_the_mask_and_tool_turns_are_not(templates, tokenizer):
    call = {"function": {"name": "w", "arguments": '{"city": "Ulm"}'}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "9"},
        {"role": "assistant", "content": "ho"},
    ]
    row = {"messages": turns, "tools": '[{"name": "w"}]'}
    made = render(conversation(row), ChatTemplate(tokenizer, templates["tools"]))
    assert made.text.startswith('[{"name": "w"}]<|im_start|>user')
    assert [made.text[a:b] for a, b in made.spans] == [f"<call>w Ulm</call>{END}", f"ho{END}"]
    with pytest.raises(RowFault, match="end of a cut reply not found"):
        supervised({**row, "finished": [False, True]}, templates["tools"], tokenizer)


def test_a_template_without_tool_calls_gives_a_fault_and_no_empty_reply(templates, tokenizer):
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(RowFault, match="the template writes no tool calls: turn 2 calls 'weather'"):
        supervised({"messages": turns}, templates["chatml"], tokenizer)


def test_what_the_template_leaves_out_is_a_fault_of_the_row(templates, tokenizer):
    thinking = {"messages": [ONE["messages"][0], {"role": "assistant", "content": "ho", "reasoning_content": " so "}]}
    assert supervised(thinking, templates["reasoning"], tokenizer) == [f"<think>\n so \n</think>\n\nho{END}"]
    for name in ("chatml", "marked"):
        with pytest.raises(RowFault, match="the template writes no reasoning: turn 2 has reasoning_content"):
            supervised(thinking, templates[name], tokenizer)
    tooled = {**ONE, "tools": [{"type": "function", "function": {"name": "weather"}}]}
    assert supervised(tooled, templates["tools"], tokenizer) == [f"ho. end{END}"]
    with pytest.raises(RowFault, match="the template writes no tools: the row has 'weather'"):
        supervised(tooled, templates["chatml"], tokenizer)


def fault(row, template_text, tokenizer):
    with pytest.raises(RowFault) as caught:
        supervised(row, template_text, tokenizer)
    return caught.value


def test_a_template_that_forgets_earlier_turns_is_a_fault_of_the_row(templates, tokenizer):
    assert fault(TWO, templates["last_two"], tokenizer).reason == "prefix is not in the full rendering"
    assert supervised(ONE, templates["last_two"], tokenizer) == [f"ho. end{END}"]


def test_reasoning_that_only_a_last_turn_shows_is_a_fault_of_the_row(templates, tokenizer):
    thinking = {"messages": [*TWO["messages"][:4], {**TWO["messages"][4], "reasoning_content": "so"}]}
    assert supervised(thinking, templates["last_reasoning"], tokenizer) == [
        f"ho. end{END}",
        f"<think>so</think>hi ho{END}",
    ]
    thinking["messages"][2] = {**TWO["messages"][2], "reasoning_content": "hm"}
    assert fault(thinking, templates["last_reasoning"], tokenizer).reason == "prefix is not in the full rendering"
    last = supervised(thinking, templates["last_reasoning"], tokenizer, last_turn_only=True)
    assert last == [f"<think>so</think>hi ho{END}"]


def test_a_reply_that_the_template_leaves_out_is_not_found_in_another_turn(templates, tokenizer):
    turns = [*ONE["messages"], {"role": "user", "content": "ho. end"}, {"role": "assistant", "content": "hi"}]
    assert (
        fault({"messages": turns}, templates["last_reply"], tokenizer).reason == "prefix is not in the full rendering"
    )


def test_markers_are_not_trusted_where_the_tokenizer_renders_otherwise(templates, tokenizer):
    class Own(type(tokenizer)):
        def apply_chat_template(self, *args, **kwargs):
            return "hi " + super().apply_chat_template(*args, **kwargs)

    own = Own(tokenizer_object=tokenizer.backend_tokenizer, eos_token=END)
    assert supervised(TWO, templates["marked"], own) == [f"ho. end{END}", f"hi ho{END}"]


def test_a_template_that_raises_is_a_fault_of_the_row(templates, tokenizer):
    row = {"messages": [{"role": "user", "content": "forbidden"}, ONE["messages"][1]]}
    raised = fault(row, templates["no_users"], tokenizer)
    assert raised.reason == "template raised"
    assert "no such talk" in raised.detail
    assert fault(ONE, "{{ messages[7].content }}", tokenizer).reason == "template raised"


def test_text_that_would_become_a_control_token_is_a_fault_of_the_row(templates, tokenizer):
    row = {"messages": [{"role": "user", "content": f"hi{END}\n<|im_start|>assistant\n"}, ONE["messages"][1]]}
    assert fault(row, templates["chatml"], tokenizer).reason == "control token in a message"
    row = {"messages": [ONE["messages"][0], {**ONE["messages"][1], "reasoning_content": END}]}
    assert fault(row, templates["reasoning"], tokenizer).reason == "control token in a message"


def test_a_reply_that_the_template_changes_can_be_learned_but_not_cut(templates, tokenizer):
    shouting = templates["chatml"].replace("m.content", "m.content | upper")
    assert supervised(ONE, shouting, tokenizer) == [f"HO. END{END}"]
    assert fault({**ONE, "finished": [False]}, shouting, tokenizer).reason == "end of a cut reply not found"


def test_errors_of_the_run_are_not_faults_of_a_row(templates, tokenizer):
    with pytest.raises(ValueError, match="chat template is not Jinja") as caught:
        supervised(ONE, templates["broken"], tokenizer)
    assert not isinstance(caught.value, RowFault)
    with pytest.raises(ValueError, match="no chat template; give one"):
        ChatTemplate(tokenizer)


def test_the_same_text_on_any_day(templates, tokenizer):
    made = render(conversation(ONE), ChatTemplate(tokenizer, templates["dated"]))
    assert made.text.startswith("01 Jan 2025 2025-01-01<|im_start|>system")


@pytest.mark.parametrize("kind", ["bytes", "trimmed", "words"])
@pytest.mark.parametrize("name", ["chatml", "llama3", "marked", "plain_text", "other_last_end"])
@pytest.mark.parametrize("finished", [True, False])
def test_masked_tokens_decode_to_the_supervised_text(kind, name, finished, templates, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    content = "hi ho. you" if kind == "words" else "hi hö.  \U0001f600 é\n\n you"
    row = {"messages": [ONE["messages"][0], {"role": "assistant", "content": content}], "finished": [finished]}
    made = render(conversation(row), ChatTemplate(tokenizer, templates[name]))
    encoded = tokenizer(made.text, add_special_tokens=False, return_offsets_mapping=True)
    ids, mask = np.array(encoded["input_ids"]), token_mask(made, np.array(encoded["offset_mapping"]))
    ((start, end),) = made.spans
    expected = tokenizer(made.text[start:end], add_special_tokens=False)["input_ids"]
    assert ids[mask].tolist() == expected
    if kind != "words":
        assert tokenizer.decode(ids[mask]) == made.text[start:end]


def test_a_token_that_reaches_in_from_the_header_is_outside_and_one_that_reaches_out_is_inside():
    offsets = np.array([[0, 4], [4, 7], [7, 9], [9, 12]])
    assert token_mask(Rendered("0123456789ab", ((5, 10),)), offsets).tolist() == [False, False, True, True]


@pytest.mark.parametrize("kind", ["bytes", "trimmed"])
def test_a_space_of_the_header_that_the_tokenizer_joins_with_the_reply_takes_no_token_from_it(kind, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    for text, start, expected in (("A:  hi ho", 4, " hi ho"), ("A: so hi", 3, "so hi"), ("A:\n\n", 3, "")):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        mask = token_mask(Rendered(text, ((start, len(text)),)), np.array(encoded["offset_mapping"]))
        said = tokenizer.decode(np.array(encoded["input_ids"])[mask])
        assert said == expected


def test_trimmed_white_space_belongs_to_the_span_it_stands_in():
    offsets = np.array([[0, 3], [4, 4], [4, 6], [7, 7], [8, 8]])  # "\n" ending at 4, 7 and 8, trimmed to nothing
    assert token_mask(Rendered("abc\nde\n\n", ((4, 7),)), offsets).tolist() == [False, False, True, True, False]
