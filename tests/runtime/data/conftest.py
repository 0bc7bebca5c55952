"""In: nothing. Out: small tokenizers and chat templates for the tests of the data package, and writers of row files."""

import gzip
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SYSTEM = "be kind"
CHATML = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nbe kind<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ m.content + '<|im_end|>' + '\n' }}{% endgeneration %}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "marked": MARKED,
    "marked_content": MARKED.replace(
        "{{ m.content + '<|im_end|>' + '\n' }}{% endgeneration %}",
        "{{ m.content }}{% endgeneration %}{{ '<|im_end|>' + '\n' }}",
    ),
    "marked_bos": "{{ bos_token }}" + MARKED,
    "marks_nothing": CHATML + "{% generation %}{% endgeneration %}",
    "marks_everything": "{% generation %}" + CHATML + "{% endgeneration %}",
    "last_two": CHATML.replace("in messages %}{{", "in messages[-2:] %}{{"),
    "no_users": "{% for m in messages %}{% if m.role == 'user' and 'forbidden' in m.content %}"
    "{{ raise_exception('no such talk') }}{% endif %}{% endfor %}" + CHATML,
    "other_last_end": CHATML.replace(
        "m.content + '<|im_end|>'",
        "m.content + ('<|eot_id|>' if loop.last and m.role == 'assistant' else '<|im_end|>')",
    ),
    "empty_thinking": CHATML.replace(
        "m.role + '\n' + m.content",
        "m.role + '\n' + ('<think>\n\n</think>\n\n' if loop.last and m.role == 'assistant' else '') + m.content",
    ),
    "reasoning": CHATML.replace(
        "m.role + '\n' + m.content",
        "m.role + '\n' + ('<think>\n' + m.reasoning_content + '\n</think>\n\n' if m.reasoning_content else '') "
        "+ m.content",
    ),
    "last_reasoning": CHATML.replace(
        "m.role + '\n' + m.content",
        "m.role + '\n' + ('<think>' + m.reasoning_content + '</think>' if loop.last and m.reasoning_content else '') "
        "+ m.content",
    ),
    "last_reply": CHATML.replace("m.content", "('' if m.role == 'assistant' and not loop.last else m.content)"),
    "no_header": "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}",
    "header_unknown": CHATML.split("{% if add_generation_prompt")[0],
    "plain_text": "{% for m in messages %}{{ m.role + ':\n' + m.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}",
    "tools": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name + ' ' + c.function.arguments.city + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "dated": "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }}" + CHATML,
    "broken": "{% for m in messages %}{{ m.content }",
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin|>"]


@pytest.fixture(scope="session")
def tokenizers_by_kind():
    """Byte-level BPE with and without trimmed offsets (next to no merges), and a word-level one."""

    def wrapped(backend):
        backend.add_special_tokens(SPECIAL)
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|begin|>")

    def bytes_(trim):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {letter: i for i, letter in enumerate(alphabet)}
        merges = [("Ċ", "Ċ"), ("h", "i"), ("Ġ", "hi")]
        vocab |= {"".join(pair): len(vocab) + i for i, pair in enumerate(merges)}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.post_processor = processors.ByteLevel(trim_offsets=trim)
        backend.decoder = decoders.ByteLevel()
        return wrapped(backend)

    words = ["[UNK]", "hi", "ho", "you", "be", "kind", "system", "user", "assistant", "bye", ".", ":", "forbidden"]
    word_level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    return {"bytes": bytes_(False), "trimmed": bytes_(True), "words": wrapped(word_level)}


@pytest.fixture
def tokenizer(tokenizers_by_kind):
    return tokenizers_by_kind["bytes"]


@pytest.fixture
def templates():
    return TEMPLATES


@pytest.fixture
def write_rows(tmp_path):
    """Write rows as JSON Lines (or as one array, or gzip) and return the path."""

    def write(rows, name="rows.jsonl", array=False) -> Path:
        text = json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write
