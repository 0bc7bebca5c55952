"""In: a Draft that names files. Out: what they say: sizes of its config.json, shapes of its weights; or a Problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from specforge.compiler.config_json import SIZES, geometry_of
from specforge.compiler.problem import Problem
from specforge.dsl.draft import Draft
from specforge.dsl.node import problem_of
from specforge.settings import Geometry


@attrs.frozen
class DraftConfig:
    """A draft's own config.json. None: the file does not say. `biased`: a bias that it asks for, by its key."""

    architecture: str
    geometry: Geometry
    draft_vocab_size: int | None
    aux_layers: tuple[int, ...] | None
    fc_norm: bool | None
    norm_output: bool | None
    biased: tuple[str, ...]


def read_config(node: Draft, place: Path) -> DraftConfig | Problem:
    """The config at `place`, which is `node.config`."""
    fix = "use the config.json of an exported draft"
    try:
        config: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        absent = [key for key in SIZES if not isinstance(config.get(key), int) or config[key] < 1]
        if absent:
            what = f"Draft.config is {node.config!r}: {place} does not give {', '.join(absent)}"
            return problem_of(node, "config", "draft-config", what, fix)
        layers = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        vocabulary = config.get("draft_vocab_size")
        return DraftConfig(
            architecture=(config.get("architectures") or ["unknown"])[0],
            geometry=geometry_of(config),
            draft_vocab_size=None if vocabulary is None else int(vocabulary),
            aux_layers=None if layers is None else tuple(int(i) for i in layers),
            fc_norm=config.get("fc_norm"),
            norm_output=config.get("norm_output"),
            biased=tuple(key for key in ("attention_bias", "mlp_bias", "bias") if config.get(key)),
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"Draft.config is {node.config!r}: {place} is not as transformers writes it ({error})"
        return problem_of(node, "config", "draft-config", what, fix)


def read_shapes(node: Draft, place: Path) -> dict[str, tuple[int, ...]] | Problem:
    """Shapes from the header of a safetensors file: eight bytes of its length, then JSON."""
    try:
        with place.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        shapes = {name: tuple(tensor["shape"]) for name, tensor in header.items()}
        if max(tensor["data_offsets"][1] for tensor in header.values()) < place.stat().st_size:
            return shapes
    except (ValueError, OverflowError, MemoryError, KeyError, TypeError, AttributeError):
        pass
    what = f"Draft.weights is {node.weights!r}, and {place} is not a whole safetensors file"
    fix = "name the model.safetensors of an export, or the draft.safetensors of a checkpoint"
    return problem_of(node, "weights", "draft-weights", what, fix)
