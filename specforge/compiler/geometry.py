"""In: a Target. Out: `World`: its Geometry and the files read. The only reading of the world in the compiler."""

from __future__ import annotations

import hashlib
import json
import os.path
from pathlib import Path
from typing import Any

import attrs

from specforge.compiler.config_json import SIZES, geometry_of
from specforge.compiler.draft_files import DraftConfig, read_config, read_shapes
from specforge.compiler.load import Loaded
from specforge.compiler.problem import Problem
from specforge.dsl.draft import Draft
from specforge.dsl.node import BAD, ReadBadValue, problem_of
from specforge.dsl.recipe import walk
from specforge.dsl.rule import nearest
from specforge.dsl.source import TEXTS, Ckpt, Recorded
from specforge.dsl.target import Target
from specforge.plan import DataFile
from specforge.recording import MANIFEST, Manifest, RecordingError, read_manifest
from specforge.settings import Geometry
from specforge.shipped import PREFIX, config_name, hub_config, hub_path, locate, recipes_folder
from specforge.target_logits import unsupported

WORLD_RULES = {
    "target-not-found": "a target's config.json is found without a network",
    "target-config": "a target's config.json is JSON with the sizes of a decoder",
    "target-head": "what a target does to its logits is known",
    "file-not-found": "a file that the recipe names exists",
    "file-empty": "a file that the recipe names is not empty",
    "draft-weights": "the weights a draft starts from are a whole safetensors file",
    "draft-config": "a draft's config is a config.json with the sizes of a draft",
    "recorded-missing": "a recording that is read is whole: its manifest.json, written last, is there",
    "ckpt-missing": "a folder of .ckpt files has some",
    "recorded-damaged": "the manifest of a recording is as this version writes it",
}


@attrs.frozen
class World:
    """What the recipe's names stand for on this machine. A Geometry is missing where its config was refused.

    `configs`: paths as `specforge.shipped.locate` reads them, the same on every machine. `folders`: targets that are
    local folders. `templates`: the text of each chat template, by path. `files`: what was read, with digests.
    `weights`: by path, the shapes of the tensors that a draft starts from. `drafts`: by path, a draft's own config.
    """

    base: Path
    geometries: dict[Target, Geometry]
    configs: dict[Target, str]
    folders: dict[Target, str]
    templates: dict[str, str]
    files: tuple[DataFile, ...]
    recordings: dict[str, Manifest] = attrs.Factory(dict)
    weights: dict[str, dict[str, tuple[int, ...]]] = attrs.Factory(dict)
    drafts: dict[str, DraftConfig] = attrs.Factory(dict)

    def recording(self, source: Recorded) -> Manifest:
        """What the manifest of a recording says; ReadBadValue where it was refused."""
        if source.path not in self.recordings:
            raise ReadBadValue
        return self.recordings[source.path]

    def draft(self, draft: Draft) -> DraftConfig | None:
        """The config a draft is given, None without one; ReadBadValue where it was refused."""
        if draft.config is None:
            return None
        if draft.config not in self.drafts:
            raise ReadBadValue
        return self.drafts[draft.config]

    def geometry(self, target: Target) -> Geometry:
        """The target's geometry; a rule that asks for one that was refused has nothing to say (ReadBadValue)."""
        if target not in self.geometries:
            raise ReadBadValue
        return self.geometries[target]


def read_world(loaded: Loaded, caches: tuple[Path, ...] = ()) -> tuple[World, list[Problem]]:
    """Find and read each target's config and digest each file. `caches`: Hugging Face hub caches to look in."""
    world = World(loaded.base, {}, {}, {}, {}, ())
    problems: list[Problem] = []
    files: dict[str, DataFile] = {}
    for _, node in walk(loaded.recipe):
        if isinstance(node, Target) and _whole(node) and node not in world.configs:
            _read_target(node, world, caches, problems)
            if node in world.configs:
                config = world.configs[node]
                files[config] = _digest(config, "target config", locate(config, loaded.base, caches))
        elif isinstance(node, TEXTS):
            for name in ("path", "chat_template"):
                path = getattr(node, name, None)
                if isinstance(path, str) and path not in files and _readable(node, name, path, loaded, problems):
                    use = "documents" if name == "path" else "chat template"
                    files[path] = _digest(path, use, loaded.base / path)
                    if name == "chat_template":
                        world.templates[path] = (loaded.base / path).read_text(encoding="utf-8")
        elif isinstance(node, Draft):
            _read_draft(node, loaded, world, files, problems)
        elif isinstance(node, Ckpt) and _whole(node):
            _files_of(node, world, problems)
        elif isinstance(node, Recorded) and _whole(node) and _recorded(node, world, problems):
            manifest = f"{node.path}/{MANIFEST}"
            files[manifest] = _digest(manifest, "recorded features", loaded.base / manifest)
    return attrs.evolve(world, files=tuple(files.values())), problems


def _whole(node: Any) -> bool:
    return all(getattr(node, a.name) is not BAD for a in attrs.fields(type(node)))


def _plain(place: Path) -> Path:
    """The path without "..", as a message shows it."""
    return Path(os.path.normpath(place))


def _digest(path: str, use: str, place: Path) -> DataFile:
    with place.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return DataFile(path, use, place.stat().st_size, digest)


def _readable(node: Any, name: str, path: str, loaded: Loaded, problems: list[Problem]) -> bool:
    place, kind = _plain(loaded.base / path), type(node).__name__
    if place.is_dir():
        what = f"{kind}.{name} is {path!r}, and {place} is a folder"
        problems.append(problem_of(node, name, "file-not-found", what, "name a file in it"))
        return False
    if not place.is_file():
        near = nearest(place.name, [p.name for p in place.parent.glob("*")]) if place.parent.is_dir() else ""
        fix = near if near.startswith("did") else "paths in a recipe are relative to the recipe's folder"
        what = f"{kind}.{name} is {path!r}, and there is no file {place}"
        problems.append(problem_of(node, name, "file-not-found", what, fix))
        return False
    if place.stat().st_size == 0:
        what = f"{kind}.{name} is {path!r}, and the file {place} is empty"
        problems.append(problem_of(node, name, "file-empty", what, "write one JSON row per line into it"))
        return False
    return True


def _read_draft(node: Draft, loaded: Loaded, world: World, files: dict[str, DataFile], problems: list[Problem]) -> None:
    if isinstance(node.config, str) and _readable(node, "config", node.config, loaded, problems):
        config = read_config(node, _plain(world.base / node.config))
        if isinstance(config, Problem):
            problems.append(config)
        else:
            world.drafts[node.config] = config
            files[node.config] = _digest(node.config, "draft config", world.base / node.config)
    if isinstance(node.weights, str) and _readable(node, "weights", node.weights, loaded, problems):
        shapes = read_shapes(node, _plain(world.base / node.weights))
        if isinstance(shapes, Problem):
            problems.append(shapes)
        else:
            world.weights[node.weights] = shapes
            files[node.weights] = _digest(node.weights, "the draft's first weights", world.base / node.weights)


def _files_of(node: Ckpt, world: World, problems: list[Problem]) -> None:
    folder = _plain(world.base / node.path)
    if next((p for p in folder.rglob("*") if p.name.endswith((".ckpt", ".ckpt.gz"))), None) is None:
        state = "has no .ckpt file" if folder.is_dir() else "is no folder"
        what = f"Ckpt.path is {node.path!r}, and {folder} {state}"
        problems.append(problem_of(node, "path", "ckpt-missing", what, "name the folder above rows_0-2000/data_0.ckpt"))


def _recorded(node: Recorded, world: World, problems: list[Problem]) -> bool:
    """Whether the recording is whole and known now."""
    folder = _plain(world.base / node.path)
    if node.path in world.recordings:
        return True
    if not (folder / MANIFEST).is_file():
        state = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        if any(folder.glob("shard-*.safetensors")):
            state = f"it has shards and no {MANIFEST}: its recording was stopped"
        fix = "run the recipe that records it, with record=Record(features, path); paths are relative to the recipe"
        what = f"Recorded.path is {node.path!r}, and {folder} is no recording: {state}"
        problems.append(problem_of(node, "path", "recorded-missing", what, fix))
        return False
    try:
        world.recordings[node.path] = read_manifest(folder)
    except RecordingError as error:
        what = f"Recorded.path is {node.path!r}: {error}"
        problems.append(problem_of(node, "path", "recorded-damaged", what, "record these features again"))
        return False
    return True


def _read_target(target: Target, world: World, caches: tuple[Path, ...], problems: list[Problem]) -> None:
    if target.random_weights and target.config is None:
        return  # a rule of Target refuses this already
    field = "config" if target.config else "name"
    found = _find_config(target, world, caches)
    if found is None:
        if target.config is not None:
            what = f"Target.config is {target.config!r}, and there is no file {_plain(world.base / target.config)}"
            fix = "paths in a recipe are relative to the recipe's folder"
        else:
            folder = "a folder without config.json" if (world.base / target.name).is_dir() else "no such folder"
            what = f"Target.name is {target.name!r}: {folder}, no shipped config, and not in the Hugging Face cache"
            shipped = [p.stem.replace("--", "/") for p in (recipes_folder() / "targets").glob("*--*.json")]
            near = nearest(target.name, shipped)
            fix = f"fetch it with: hf download {target.name} config.json, or give config="
            fix = near if near.startswith("did") else fix
        problems.append(problem_of(target, field, "target-not-found", what, fix))
        return
    world.configs[target] = found
    if (world.base / target.name).is_dir() and not target.random_weights:
        world.folders[target] = target.name
    place = _plain(locate(found, world.base, caches))
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
        config = {**config, **(config.get("text_config") or {})}
        absent = [key for key in SIZES if not isinstance(config.get(key), int) or config[key] < 1]
    except (ValueError, TypeError, AttributeError) as error:
        what = f"Target {target.name!r}: {place} is not a JSON object ({error})"
        problems.append(problem_of(target, field, "target-config", what, "use the config.json of a transformers model"))
        return
    if absent:
        what = f"Target {target.name!r}: {place} does not give {', '.join(absent)}"
        problems.append(problem_of(target, field, "target-config", what, "use the config.json of a decoder model"))
        return
    unknown = unsupported(config)
    if unknown is not None:
        what = f"Target {target.name!r}: its logits are not the head's alone ({unknown})"
        fix = "choose a target with plain logits, or with those of Cohere, Gemma or Granite"
        problems.append(problem_of(target, field, "target-head", what, fix))
        return
    try:
        world.geometries[target] = geometry_of(config)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"Target {target.name!r}: {place} has a value of another kind than transformers writes ({error})"
        problems.append(problem_of(target, field, "target-config", what, "use the config.json of a decoder model"))


def _find_config(target: Target, world: World, caches: tuple[Path, ...]) -> str | None:
    if target.config is not None:
        return target.config if (world.base / target.config).is_file() else None
    if (world.base / target.name / "config.json").is_file():
        return f"{target.name}/config.json"
    if (recipes_folder() / "targets" / config_name(target.name)).is_file():
        return PREFIX + config_name(target.name)
    return hub_path(target.name) if hub_config(target.name, caches) else None
