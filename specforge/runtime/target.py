"""In: the settings of a target and where it goes. Out: `TargetModel`, the frozen model, from files or drawn at random.

Legend: V vocabulary, H hidden size. Nothing here asks a network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specforge.runtime import env
from specforge.runtime.fetch import FETCHABLE, target_folder
from specforge.settings import TargetSettings
from specforge.shipped import locate
from specforge.target_logits import logits_of, unsupported

_RANDOM_LOGIT_STD = 3.0


@attrs.frozen
class Placement:
    """Where a model's weights go: a torch device ("cpu", "cuda:0") and a dtype ("float32", "bfloat16")."""

    device: str
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@attrs.frozen(eq=False)
class TargetModel:
    """The frozen target: eval mode, no gradients. `folder` is where it was loaded from, None for random weights.

    `head_VH` and `embedding_VH` are the weights of the LM head and the input embedding; one tensor where they are tied.
    """

    model: PreTrainedModel
    settings: TargetSettings
    folder: Path | None

    @property
    def head_VH(self) -> torch.Tensor:
        return self.model.get_output_embeddings().weight

    @property
    def embedding_VH(self) -> torch.Tensor:
        return self.model.get_input_embeddings().weight

    @property
    def decoder(self) -> nn.Module:
        """The text model inside: `layers`, then `norm`; its forward returns the post-norm last hidden state."""
        found = [m for m in self.model.modules() if hasattr(m, "embed_tokens") and hasattr(m, "layers")]
        if len(found) != 1 or not isinstance(getattr(found[0], "norm", None), nn.Module):
            raise ValueError(
                f"target {self.settings.name}: {type(self.model).__name__} has no decoder with embed_tokens, layers "
                "and norm to capture from. Choose a target built like Llama."
            )
        return found[0]

    @property
    def device(self) -> torch.device:
        return self.head_VH.device


def load_target(settings: TargetSettings, base: Path, placement: Placement) -> TargetModel:
    """The target on `placement`. With `random_seed`, weights are drawn on the CPU in float32, the same on every device.

    `settings.folder` is relative to `base`, `settings.config` a plan's path. Raises ValueError when the weights are not
    here, are incomplete, or are of another geometry than the plan was compiled for.
    """
    if placement.device.startswith("cuda"):
        # cuDNN's attention plans anew for every shape, at 2 ms a layer, and lengths differ from batch to batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
    with _quiet():
        if settings.random_seed is not None:
            folder, model = None, _random(settings, base, placement.torch_dtype)
        else:
            folder = find_folder(settings, base)
            model = _load(settings, base, folder, placement.torch_dtype)
    target = TargetModel(model.to(placement.device).eval().requires_grad_(False), settings, folder)
    _check_head(target)
    _check_geometry(target)
    return target


def load_tokenizer(settings: TargetSettings, base: Path) -> PreTrainedTokenizerBase:
    """The target's own tokenizer. Raises ValueError for a target with random weights: it has none."""
    if settings.random_seed is not None:
        raise ValueError(
            f"target {settings.name}: has random weights (random_seed={settings.random_seed}) and so no tokenizer. "
            "Use Prompts (token ids) as its source, or a target with weights."
        )
    folder = find_folder(settings, base)
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"target {settings.name}: no tokenizer can be loaded from {folder}: {error}") from error


def find_folder(settings: TargetSettings, base: Path) -> Path:
    """The local folder of the target: `settings.folder`, else by name in specforge's cache, else in Hugging Face's.

    Raises ValueError that names the command which fetches it.
    """
    if settings.folder is not None:
        folder = base / settings.folder
        if not (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
            raise ValueError(f"target {settings.name}: {folder} has no config.json. Give the folder with the weights.")
        return folder
    cache = env.cache_folder()
    folder = target_folder(settings.name, cache)
    if (folder / "config.json").is_file():
        return folder
    hub = env.hugging_face_cache()
    config = (
        try_to_load_from_cache(settings.name, "config.json", cache_dir=hub) if _is_hub_name(settings.name) else None
    )
    # `hf download NAME config.json` is all that compiling needs: the snapshot may hold nothing else.
    if isinstance(config, str) and any(Path(config).parent.glob("*.safetensors")):
        return Path(config).parent
    verb = "specforge fetch" if settings.name in FETCHABLE else "hf download"
    raise ValueError(
        f"target {settings.name}: its weights are neither in {folder} nor in {hub}. Run: {verb} {settings.name}"
    )


def _is_hub_name(name: str) -> bool:
    return name.count("/") <= 1 and not name.startswith(("/", ".")) and not name.endswith("/")


def _model_class(config: PretrainedConfig) -> type:
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def _attention(config: PretrainedConfig) -> str:
    """Soft-capped attention scores, as Gemma 2's, have no fused kernel."""
    return "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None else "sdpa"


def _load(settings: TargetSettings, base: Path, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    name, config = settings.name, _config(settings, base, folder)
    try:
        model, info = _model_class(config).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=_attention(config),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
        )
    except (OSError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"target {name}: the weights in {folder} cannot be read: {first} Put all its .safetensors files there."
        ) from error
    wrong = sorted(f"{key} is missing" for key in info["missing_keys"])
    wrong += sorted(f"{key} is {list(has)}, not {list(needs)}" for key, has, needs in info["mismatched_keys"])
    if wrong:
        raise ValueError(
            f"target {name}: the weights in {folder} do not fit its config.json in {len(wrong)} tensors: {wrong[0]}. "
            "Put the complete weights of one model there."
        )
    return model


def _config(settings: TargetSettings, base: Path, folder: Path | None) -> PretrainedConfig:
    """The plan's config; of a target that was found by its name, the one beside its weights in `folder`."""
    name = settings.name
    found_by_name = folder is not None and settings.folder is None
    path = folder / "config.json" if found_by_name else locate(settings.config, base)
    if not path.is_file():
        raise ValueError(
            f"target {name}: {path} is not there, and it gives the shape of the weights. The plan reads "
            f"{settings.config!r} from the recipe's folder, {base}: put the file back there."
        )
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, StrictDataclassError) as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"target {name}: {path} cannot be read as a transformers config: {said[:300]} Restore the config.json "
            "that the recipe was compiled with."
        ) from None


def _random(settings: TargetSettings, base: Path, dtype: torch.dtype) -> PreTrainedModel:
    config = _config(settings, base, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.random_seed)
        model = _model_class(config).from_config(config, dtype=torch.float32, attn_implementation=_attention(config))
    # As initialised, logits differ by a few tenths and every teacher is close to uniform: nothing could be learnt.
    head_VH = model.get_output_embeddings().weight
    with torch.no_grad():
        head_VH.mul_(_RANDOM_LOGIT_STD / (head_VH.std() * math.sqrt(head_VH.shape[1]) * settings.geometry.logits.scale))
    return model.to(dtype)


def _check_geometry(target: TargetModel) -> None:
    geometry, text = target.settings.geometry, target.model.config.get_text_config()
    found: dict[str, Any] = {
        "hidden_size": text.hidden_size,
        "num_layers": text.num_hidden_layers,
        "vocab_size": target.head_VH.shape[0],
        "tied_embeddings": target.head_VH.data_ptr() == target.embedding_VH.data_ptr(),
        "logits": logits_of(text.to_dict()),
    }
    wrong = [
        f"{key} is {found[key]}, planned {getattr(geometry, key)}"
        for key in found
        if found[key] != getattr(geometry, key)
    ]
    if wrong:
        raise ValueError(
            f"target {target.settings.name}: the weights in {target.folder or target.settings.config} are of another "
            f"geometry than the plan: {'; '.join(wrong)}. Compile the recipe again with the config of these weights."
        )


def _check_head(target: TargetModel) -> None:
    """Logits that the teacher cannot form would teach wrong numbers. As the compiler's rule target-head."""
    unknown = unsupported(target.model.config.get_text_config().to_dict())
    if unknown is not None:
        raise ValueError(
            f"target {target.settings.name}: its logits are not the head's alone ({unknown}). Choose a target with "
            "plain logits, or with those of Cohere, Gemma or Granite."
        )
    if getattr(target.model.get_output_embeddings(), "bias", None) is not None:
        raise ValueError(f"target {target.settings.name}: its head has a bias, which is not supported. Choose another.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Transformers' bars and warnings would break the run's own progress display."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
