"""In: a llama-architecture GGUF file and a config.json. Out: a folder that transformers loads, weights in bfloat16.

Legend: N heads, D head dimension, I input width. Dequantised by the `gguf` package; nothing else reads the file, so
the result does not depend on the transformers version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert(gguf_file: Path, config_file: Path, folder: Path) -> None:
    """Write model.safetensors, config.json (the bytes of `config_file`), generation_config.json and tokenizer files.

    Raises ValueError when the `gguf` package is missing, or when the file and the config disagree.
    """
    try:
        import gguf
    except ImportError as error:
        raise ValueError(
            f"{gguf_file}: reading GGUF needs the package gguf. Run: pip install specforge[gguf]"
        ) from error

    reader = gguf.GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = json.loads(config_file.read_text())
    _check(gguf_file, fields, config)

    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        name = _name(tensor.name, gguf_file)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = _half_split(values, heads)
        weights[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    (folder / "config.json").write_bytes(config_file.read_bytes())
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(fields, config["max_position_embeddings"], folder)


def _check(gguf_file: Path, fields: dict[str, Any], config: dict[str, Any]) -> None:
    facts = {
        "hidden_size": "llama.embedding_length",
        "intermediate_size": "llama.feed_forward_length",
        "num_hidden_layers": "llama.block_count",
        "num_attention_heads": "llama.attention.head_count",
        "num_key_value_heads": "llama.attention.head_count_kv",
        "max_position_embeddings": "llama.context_length",
        "rope_theta": "llama.rope.freq_base",
        "bos_token_id": "tokenizer.ggml.bos_token_id",
        "eos_token_id": "tokenizer.ggml.eos_token_id",
        "pad_token_id": "tokenizer.ggml.padding_token_id",
    }
    wrong = [
        f"{key} is {config[key]}, the file has {fields.get(field)}"
        for key, field in facts.items()
        if config[key] != fields.get(field)
    ]
    if wrong:
        raise ValueError(f"{gguf_file}: not the model of its config.json: {'; '.join(wrong)}. Fetch the right file.")


def _name(name: str, gguf_file: Path) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    block, _, rest = name.partition(".")[2].partition(".")
    if not name.startswith("blk.") or rest not in _PER_LAYER:
        raise ValueError(f"{gguf_file}: tensor {name} is none of a llama model. Only llama files can be converted.")
    return f"model.layers.{block}.{_PER_LAYER[rest]}"


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the rotary pairs of a head, [N (D/2) 2, I]; transformers keeps halves, [N 2 (D/2), I]."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_tokenizer(fields: dict[str, Any], max_length: int, folder: Path) -> None:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # "smollm" splits every digit off before the GPT-2 pattern: without it, "\n\n1" becomes "\n", "\n", "1".
    pieces: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if fields["tokenizer.ggml.pre"] == "smollm":
        pieces.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    named = {role: tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **named,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
            "chat_template": fields["tokenizer.chat_template"],
        },
    )


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
