"""In: a checkpoint. Out: a folder that transformers ("hf") or SGLang ("sglang") loads: config.json, model.safetensors.

Names and config keys are those of `LlamaForCausalLMEagle3` as SGLang reads it. Floats are bfloat16.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specforge.runtime.checkpoint.save import sync
from specforge.runtime.checkpoint.saved_draft import SavedDraft, read_draft
from specforge.runtime.checkpoint.state import EMBEDDING
from specforge.runtime.target_embedding import load_embedding
from specforge.runtime.writing import writing
from specforge.settings import DraftSettings, Geometry

FORMATS = ("hf", "sglang")
ARCHITECTURE = "LlamaForCausalLMEagle3"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
REQUIRED = ("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d")


def export(checkpoint: Path, format: str, out: Path) -> Path:
    """Write the draft of `checkpoint` (its folder, or its run's) into the folder `out`, and return `out`.

    An earlier export at `out` is replaced. ValueError for an unknown format or another non-empty `out`;
    CheckpointError (a ValueError) where the checkpoint is missing or lacks tensors; WriteError (another one) where
    `out` cannot be written.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no export format {format!r}; use one of: {', '.join(FORMATS)}")
    _refuse_other(out)
    saved = read_draft(checkpoint)
    plan, draft = saved.checkpoint.plan, saved.train.draft
    tensors = export_tensors(draft, format, _with_embedding(saved, format))
    _write(out, tensors, export_config(draft, plan.target.geometry))
    return out


def is_whole(out: Path) -> bool:
    """Whether `out` holds both files of an export."""
    return all((out / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE))


def export_keys(draft: DraftSettings, format: str) -> tuple[str, ...]:
    """Names of the exported tensors, sorted.

    SGLang shares the target's embedding, unless the draft's width differs: then it has to be shipped.
    """
    ships_embedding = format == "hf" or draft.target_hidden_size != draft.hidden_size
    return tuple(sorted(p.name for p in draft.parameters if ships_embedding or p.name != EMBEDDING))


def export_tensors(draft: DraftSettings, format: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors to write: the format's key set, floats bfloat16, d2t int64, t2d bool. ValueError where they lack."""
    shapes = {p.name: p.shape for p in draft.parameters}
    names = export_keys(draft, format)
    problems = [f"{name} is missing" for name in (*names, *REQUIRED) if name not in tensors]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the plan says {shapes[name]}"
        for name in names
        if name in tensors and tuple(tensors[name].shape) != shapes[name]
    ]
    if problems:
        raise ValueError(f"the checkpoint cannot be exported: {'; '.join(dict.fromkeys(problems))}")
    return {name: _exported(name, tensors[name]) for name in names}


def export_config(draft: DraftSettings, target: Geometry) -> dict[str, Any]:
    """config.json, with the rotary description in both schemas of transformers: v4 and v5."""
    rope = dict(draft.rope)
    theta = rope.setdefault("rope_theta", 10_000.0)
    kind = rope.setdefault("rope_type", "default")
    eos = target.eos_token_ids
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": draft.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_attention_heads": draft.num_heads,
        "num_key_value_heads": draft.num_kv_heads,
        "head_dim": draft.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": draft.hidden_act,
        "rms_norm_eps": draft.rms_norm_eps,
        "initializer_range": draft.initializer_range,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": draft.vocab_size,
        "draft_vocab_size": draft.draft_vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
        "pad_token_id": target.pad_token_id if target.pad_token_id is not None else 0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else {k: v for k, v in rope.items() if k != "rope_theta"},
        "rope_parameters": rope,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        "target_model_type": target.model_type,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(draft.aux_layers),
            "use_aux_hidden_state": True,
        },
    }
    if draft.target_hidden_size != draft.hidden_size:
        config["target_hidden_size"] = draft.target_hidden_size
    return config


def _exported(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name == "d2t":
        return tensor.to(torch.int64).contiguous()
    if name == "t2d":
        return tensor.to(torch.bool).contiguous()
    return tensor.to(torch.bfloat16).contiguous()


def _with_embedding(saved: SavedDraft, format: str) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors, and the target's embedding where it is wanted and the checkpoint leaves it out."""
    tensors = dict(saved.checkpoint.draft)
    if EMBEDDING in export_keys(saved.train.draft, format) and EMBEDDING not in tensors:
        tensors[EMBEDDING] = load_embedding(saved.checkpoint.plan.target, saved.base)
    return tensors


def _refuse_other(out: Path) -> None:
    """ValueError unless `out` is absent, empty, or holds an earlier export, or its config, and nothing else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; name a folder to export to")
    names = {p.name for p in out.iterdir()}
    if not names:
        return
    if names <= {CONFIG_FILE, WEIGHTS_FILE} and _architectures(out / CONFIG_FILE) == [ARCHITECTURE]:
        return
    raise ValueError(
        f"{out} is not empty and is not an earlier export (it holds {', '.join(sorted(names)[:5])}); "
        "name another folder, or empty this one"
    )


def _architectures(config: Path) -> Any:
    try:
        return json.loads(config.read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError):
        return None


def _write(out: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Into a temporary folder beside `out`, synced, then renamed into its place."""
    temporary = out.with_name(f".{out.name}.exporting-{os.getpid()}")
    with writing("the export", out, half=temporary):
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        # safetensors writes files that only their owner can read; serving often runs as another user.
        (temporary / WEIGHTS_FILE).chmod((temporary / CONFIG_FILE).stat().st_mode)
        for path in (temporary / WEIGHTS_FILE, temporary / CONFIG_FILE, temporary):
            sync(path)
        earlier = out.with_name(f".{out.name}.replaced-{os.getpid()}")
        if out.exists():
            out.rename(earlier)
        try:
            temporary.rename(out)
        except OSError:
            if earlier.exists():
                earlier.rename(out)
            raise
        sync(out.parent)
        shutil.rmtree(earlier, ignore_errors=True)
