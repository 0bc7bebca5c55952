"""In: the config of a decoder. Out: its `Logits`, what it does to logits after the head's matmul; or what is not known.

Compiler and runtime both ask here, of config.json and of the config that transformers made of it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from specforge.settings import Logits

# model type -> the value where config.json has none, as in transformers' config classes
_MULTIPLIED = {"cohere": 0.0625, "cohere2": 0.0625}
_DIVIDED = {"granite": 1.0, "granitemoe": 1.0, "granitemoehybrid": 1.0, "granitemoeshared": 1.0}
_CAPPED = {"gemma2": 30.0, "vaultgemma": 30.0, "gemma3": None, "gemma3_text": None}
# key -> the value that changes nothing; read where the model type is not known to use the key in one of the ways above
_NEUTRAL: dict[str, Any] = {
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "final_logit_softcapping": None,
    "lm_head_multiplier": 1.0,
    "mup_width_multiplier": 1.0,
    "logits_mup_width_multiplier": 1.0,
    "output_multiplier": 1.0,
}


def logits_of(config: Mapping[str, Any]) -> Logits:
    """Of a decoder for which `unsupported` found nothing."""
    kind = config.get("model_type")
    scale, softcap = 1.0, None
    if kind in _MULTIPLIED:
        scale = float(config.get("logit_scale", _MULTIPLIED[kind]) or 1.0)
    if kind in _DIVIDED:
        scale = 1 / float(config.get("logits_scaling", _DIVIDED[kind]) or 1.0)
    if kind in _CAPPED:
        softcap = config.get("final_logit_softcapping", _CAPPED[kind])
    return Logits(scale, None if softcap is None else float(softcap))


def unsupported(config: Mapping[str, Any]) -> str | None:
    """The first key, with its value, that changes the logits in a way that is not known of this model type."""
    kind = config.get("model_type")
    known: dict[str, Container[Any]] = {
        "logit_scale": _MULTIPLIED,
        "logits_scaling": _DIVIDED,
        "final_logit_softcapping": _CAPPED,
    }
    for key, neutral in _NEUTRAL.items():
        if kind not in known.get(key, ()) and config.get(key) not in (None, neutral):
            return f"{key} is {config[key]}"
    base = config.get("dim_model_base")  # MiniCPM divides by hidden_size / dim_model_base
    return f"dim_model_base is {base}" if base not in (None, config.get("hidden_size")) else None
