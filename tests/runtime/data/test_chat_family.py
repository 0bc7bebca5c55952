"""In: each chat family, a tokenizer with its tokens. Out: checks of its text, and of what of that is supervised."""

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from specforge.dsl.chat_family import FAMILIES
from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import conversation
from specforge.runtime.data.loss_mask import render
from specforge.runtime.data.renderer import TAG, chat_template
from specforge.runtime.data.row_fault import RowFault
from specforge.runtime.data.source import prepare
from specforge.settings import SourceSettings

pytestmark = pytest.mark.cpu

TURNS = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ho"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "end"},
]
IM, ME = "<|im_start|>", "<|im_end|>"
BEGIN = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
LLAMA3 = "<|start_header_id|>{}<|end_header_id|>\n\n"
OSS = "<|channel|>final<|message|>"
# The whole text with what is supervised in « and ».
CHATML = f"{IM}system\nbe kind{ME}\n{IM}user\nhi{ME}\n{IM}assistant\n«ho{ME}»\n{IM}user\nbye{ME}\n{IM}assistant\n"
WRITTEN = {
    "llama3": "<|begin_of_text|>"
    + "".join(
        LLAMA3.format(role) + text
        for role, text in [
            ("system", "be kind<|eot_id|>"),
            ("user", "hi<|eot_id|>"),
            ("assistant", "«ho<|eot_id|>»"),
            ("user", "bye<|eot_id|>"),
            ("assistant", "«end<|eot_id|>»"),
        ]
    ),
    "chatml": f"{CHATML}«end{ME}»\n",
    "qwen": f"{CHATML}«end{ME}»\n",
    "qwen3": f"{CHATML}<think>\n\n</think>\n\n«end{ME}»\n",
    "phi3": "<|system|>\nbe kind<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n«ho<|end|>»\n<|user|>\nbye<|end|>\n"
    "<|assistant|>\n«end<|end|>»\n",
    "phi4": CHATML.replace(f"{ME}\n", ME).replace(f"{ME}»\n", f"{ME}»").replace("\n", "<|im_sep|>") + f"«end{ME}»",
    "phi4-mini": "<|system|>be kind<|end|><|user|>hi<|end|>"
    "<|assistant|>«ho<|end|>»<|user|>bye<|end|><|assistant|>«end<|end|>»",
    "gemma": "<bos><start_of_turn>user\nbe kind\n\nhi<end_of_turn>\n<start_of_turn>model\n«ho<end_of_turn>»\n"
    "<start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\n«end<end_of_turn>»\n",
    "deepseek-v3": f"{BEGIN}be kind<｜User｜>hi<｜Assistant｜>«ho{EOS}»<｜User｜>bye<｜Assistant｜>«end{EOS}»",
    "glm": "[gMASK]<sop><|system|>be kind<|user|>hi<|assistant|><think></think>«ho»"
    "<|user|>bye<|assistant|><think></think>«end»",
    "kimi-k2": "<|im_system|>system<|im_middle|>be kind<|im_end|><|im_user|>user<|im_middle|>hi<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>«ho<|im_end|>»<|im_user|>user<|im_middle|>bye<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>«end<|im_end|>»",
    "gpt-oss": FAMILIES["gpt-oss"].begin + "<|start|>developer<|message|># Instructions\n\nbe kind\n\n<|end|>"
    f"<|start|>user<|message|>hi<|end|><|start|>assistant«{OSS}ho<|end|>»"
    f"<|start|>user<|message|>bye<|end|><|start|>assistant«{OSS}end<|return|>»",
}
WRITTEN["deepseek-r1-distill"] = WRITTEN["deepseek-v3"]
WRITTEN["llama4"] = (
    WRITTEN["llama3"].replace("start_header_id", "header_start").replace("end_header_id", "header_end")
).replace("eot_id", "eot")


@pytest.fixture
def tokenizer_of(tokenizer):
    """`tokenizer_of(name)`: a tokenizer with the tags of a family as special tokens, and no template of its own."""

    def make(name):
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        tags = sorted(set(TAG.findall(WRITTEN[name].replace("«", " ").replace("»", " "))))
        backend.add_tokens([AddedToken(tag, special="think" not in tag) for tag in tags])
        return PreTrainedTokenizerFast(tokenizer_object=backend)

    return make


def marked(turns, name, tokenizer, **more):
    """The rendered text with its supervised spans in « and »."""
    template = chat_template(source(name), tokenizer)
    assert not tokenizer.chat_template
    made = render(conversation({"messages": turns, **more}), template)
    text = made.text
    for start, end in reversed(made.spans):
        text = f"{text[:start]}«{text[start:end]}»{text[end:]}"
    return text


def source(name, path="rows.jsonl"):
    family = FAMILIES[name].template
    return SourceSettings("conversations", path, 1000, None, family, False, False, False, chat_family=name)


def test_every_family_is_written_down_here():
    assert WRITTEN.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_writes_and_supervises_exactly_this(name, tokenizer_of):
    assert marked(TURNS, name, tokenizer_of(name)) == WRITTEN[name]
    before, behind = FAMILIES[name].system or ("", "\n\n")
    without = WRITTEN[name].replace(f"{before}be kind{behind}", "", 1)
    assert marked(TURNS[1:], name, tokenizer_of(name)) == without


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_reply_has_no_end_of_turn(name, tokenizer_of):
    cut = marked(TURNS, name, tokenizer_of(name), finished=[True, False])
    assert cut.replace("«", "").replace("»", "") == WRITTEN[name].replace("«", "").replace("»", "")
    assert cut.rpartition("«")[2].partition("»")[0].endswith("end")


THOUGHT = {
    "qwen3": f"{CHATML}«<think>\nhm\n</think>\n\nend{ME}»\n",
    "deepseek-r1-distill": WRITTEN["deepseek-v3"].replace("«end", "«<think>\nhm\n</think>\n\nend"),
    "glm": WRITTEN["glm"].replace("</think>«end", "«hm</think>end"),
    "gpt-oss": WRITTEN["gpt-oss"].replace(
        f"«{OSS}end", f"«<|channel|>analysis<|message|>hm<|end|><|start|>assistant{OSS}end"
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_thinking_of_the_last_reply_is_supervised_where_the_family_has_it(name, tokenizer_of):
    turns = [*TURNS[:-1], {**TURNS[-1], "reasoning_content": "hm"}]
    if name in THOUGHT:
        assert FAMILIES[name].thinking
        assert marked(turns, name, tokenizer_of(name)) == THOUGHT[name]
    else:
        with pytest.raises(RowFault, match="writes no thinking"):
            marked(turns, name, tokenizer_of(name))


def test_a_reply_whose_thinking_is_left_out_is_not_supervised(tokenizer_of):
    turns = [*TURNS[:2], {**TURNS[2], "reasoning_content": "hm"}, *TURNS[3:]]
    tokenizer = tokenizer_of("qwen3")
    with pytest.raises(RowFault, match="prefix is not in the full rendering"):
        marked(turns, "qwen3", tokenizer)
    template = chat_template(source("qwen3"), tokenizer)
    made = render(conversation({"messages": turns}), template, last_turn_only=True)
    assert [made.text[a:b] for a, b in made.spans] == [f"end{ME}"]


def test_a_family_that_writes_its_empty_thinking_does_so_where_thinking_is_left_out(tokenizer_of):
    turns = [*TURNS[:2], {**TURNS[2], "reasoning_content": "hm"}, *TURNS[3:]]
    made = render(conversation({"messages": turns}), chat_template(source("glm"), tokenizer_of("glm")), True)
    assert made.text == WRITTEN["glm"].replace("«", "").replace("»", "")
    assert [made.text[a:b] for a, b in made.spans] == ["end"]


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_are_refused_and_not_left_out(name, tokenizer_of):
    tokenizer = tokenizer_of(name)
    with pytest.raises(RowFault, match="a chat family writes no tools"):
        marked(TURNS, name, tokenizer, tools=[{"name": "w"}])
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "w", "arguments": {}}}]}
    with pytest.raises(RowFault, match="a chat family writes no tool calls"):
        marked([*TURNS[:2], call], name, tokenizer)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_header_is_where_a_reply_begins(name, tokenizer_of):
    template = chat_template(source(name), tokenizer_of(name))
    before = template.render(TURNS[:2])
    assert template.render(TURNS[:2], reply_header=True) == before + FAMILIES[name].header


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_of_another_tokenizer_is_refused(name, tokenizer):
    if set(TAG.findall(WRITTEN[name].replace("«", " "))) <= tokenizer.get_vocab().keys():
        assert name in ("chatml", "qwen")  # the tokenizer of these tests has their tokens
        return
    with pytest.raises(ValueError, match=rf"chat_family='{name}' writes <.*no such token.*name the family") as caught:
        chat_template(source(name), tokenizer)
    assert not isinstance(caught.value, RowFault)


@pytest.mark.parametrize("name", ["qwen3", "glm", "deepseek-v3"])
def test_a_source_is_prepared_with_a_tokenizer_that_has_no_template(name, tokenizer_of, write_rows):
    tokenizer = tokenizer_of(name)
    path = write_rows([{"messages": TURNS}])
    (made,) = prepare(source(name, path.name), path.parent, tokenizer, len(tokenizer)).documents
    spans = WRITTEN[name].split("«")[1:]
    assert tokenizer.decode(made.tokens[made.loss_mask]) == "".join(span.partition("»")[0] for span in spans)
    assert tokenizer.decode(made.tokens) == WRITTEN[name].replace("«", "").replace("»", "")


def test_a_family_is_a_template_as_any_other(tokenizer_of):
    assert ChatTemplate(tokenizer_of("llama3"), FAMILIES["llama3"].template).has_markers
