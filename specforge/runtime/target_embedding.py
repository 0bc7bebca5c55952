"""In: the settings of a target. Out: its input embedding alone, read from its weight files without loading the rest.

Legend: V vocabulary, H hidden size.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from specforge.runtime.target import Placement, find_folder, load_target
from specforge.settings import TargetSettings

# As transformers names and looks for them: one file, else an index of several.
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


def load_embedding(settings: TargetSettings, base: Path) -> torch.Tensor:
    """The embedding [V, H] on the CPU, in the dtype of the stored weights. Random weights are drawn whole.

    `settings.folder` is relative to `base`. Raises ValueError where the weights are not here, hold no embedding, or one
    of another shape than the plan was compiled for.
    """
    if settings.random_seed is not None:
        return load_target(settings, base, Placement("cpu", settings.geometry.weights_dtype)).embedding_VH
    folder = find_folder(settings, base)
    try:
        found = _read(folder, tied=settings.geometry.tied_embeddings)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"target {settings.name}: its embedding cannot be read from {folder}: {error}. Put all the .safetensors "
            "files of the model there."
        ) from None
    shape = (settings.geometry.vocab_size, settings.geometry.hidden_size)
    if found.shape != shape:
        raise ValueError(
            f"target {settings.name}: the embedding in {folder} is {list(found.shape)}, the plan says {list(shape)}. "
            "Give the weights that the draft was trained for."
        )
    return found


def _read(folder: Path, *, tied: bool) -> torch.Tensor:
    """The only tensor called `embed_tokens.weight` under any prefix; where it is tied and not stored, the head."""
    places = _places(folder)
    for wanted in (EMBEDDING, HEAD) if tied else (EMBEDDING,):
        names = [name for name in places if name == wanted or name.endswith(f".{wanted}")]
        if len(names) > 1:
            raise ValueError(f"there are several: {', '.join(sorted(names))}")
        if names:
            with safe_open(folder / places[names[0]], framework="pt") as file:
                return file.get_tensor(names[0])
    raise ValueError(f"there is no tensor {EMBEDDING}")


def _places(folder: Path) -> dict[str, str]:
    """The file of each tensor, by the tensor's name."""
    if (folder / ONE_FILE).is_file():
        with safe_open(folder / ONE_FILE, framework="pt") as file:
            return dict.fromkeys(file.keys(), ONE_FILE)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise ValueError(f"{INDEX} has no weight_map")
    return {str(name): str(file) for name, file in index["weight_map"].items()}
