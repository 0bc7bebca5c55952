"""In: a plan and the run's folder. Out: nothing, or one PreflightError with everything this machine lacks for it."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from specforge.plan import DataFile, Plan, Role
from specforge.recording import RecordingError, read_manifest
from specforge.runtime.env import hugging_face_cache, launched_ranks
from specforge.runtime.executor.work import apart, capture_role
from specforge.runtime.recording.weights import fingerprint
from specforge.runtime.target import find_folder
from specforge.settings import CheckpointSettings, RecordedSettings, StoreSettings, TrainSettings
from specforge.shipped import HUB, locate

# what a device reports is a little below its name: an 80 GB H100 shows 79.2 GiB
MEMORY_SHARE = 0.95
SERVE = ("httpx", "starlette", "uvicorn")


class PreflightError(ValueError):
    """What the plan needs and this machine does not have: one line per problem."""


def torch_device(role: Role, rank: int = 0) -> torch.device:
    """The torch device of a rank: "cpu", or the GPU that the role names for it, else the first."""
    if role.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", role.gpus[rank]) if role.gpus else torch.device("cuda")


def preflight(plan: Plan, folder: Path) -> None:
    """Check what this version runs, packages, files by content, weights, devices, their memory, and disk space.

    Raises PreflightError that lists all problems.
    """
    problems = [
        *_not_yet(plan),
        *_packages(plan),
        *_files(plan),
        *_recordings(plan),
        *_weights(plan),
        *_devices(plan),
        *_disk(plan, folder),
    ]
    if problems:
        raise PreflightError("this plan cannot run here:\n" + "\n".join(f"  {problem}" for problem in problems))


def _not_yet(plan: Plan) -> Iterator[str]:
    """What compiles and does not run in this version, or not started like this."""
    if launched_ranks() > 1:
        yield (
            f"this is one of {launched_ranks()} processes that a launcher such as torchrun started (WORLD_SIZE), and a "
            "run starts its own; call specforge run alone, and name ranks or gpus in the recipe's topology"
        )
    if not apart(plan):
        return
    if capture_role(plan).engine != "transformers":
        yield "capture servers of SGLang do not run in this version; write servers=[Transformers()]"
    if any(isinstance(op.settings, StoreSettings) and op.settings.kind != "shared_dir" for op in plan.ops()):
        yield "the store Mooncake does not run in this version; write store=SharedDir()"


def _packages(plan: Plan) -> Iterator[str]:
    """What processes of one run talk with, and what its kernels are written in."""
    missing = [name for name in SERVE if importlib.util.find_spec(name) is None]
    if missing and apart(plan):
        yield f"target and trainer are apart, and {', '.join(missing)} is missing; pip install 'specforge[serve]'"
    if any(choice.implementation == "triton" for choice in plan.kernels) and importlib.util.find_spec("triton") is None:
        yield (
            "the plan runs Triton kernels, and triton is missing; pip install 'specforge[gpu]', or set "
            'Train(kernels="torch")'
        )


def _files(plan: Plan) -> Iterator[str]:
    for file in plan.files:
        path = locate(file.path, Path(plan.base), (hugging_face_cache(),))
        if file.path.startswith(HUB) and not path.is_file():
            yield (
                f"the target's config.json is not in {hugging_face_cache()}, where the plan was compiled with it; run: "
                f"hf download {plan.target.name} config.json"
            )
            continue
        if not path.is_file():
            yield f"{path} ({file.use}) is not there; restore it, or correct its path and compile the recipe again"
            continue
        if (changed := _changed(path, file)) is not None:
            yield f"{path} ({file.use}) has changed since the plan was compiled: {changed}; compile the recipe again"


def _recordings(plan: Plan) -> Iterator[str]:
    """The shards of the recordings, by size, and whether they are of these weights; manifests are files of the plan."""
    for op in plan.ops("recorded"):
        assert isinstance(op.settings, RecordedSettings)
        folder = Path(plan.base, op.settings.path)
        try:
            manifest = read_manifest(folder)
        except RecordingError:
            continue  # _files says it
        known = manifest.conditions.weights
        here = fingerprint(plan.target, Path(plan.base)) if known and not list(_weights(plan)) else known
        if here != known:
            yield (
                f"{folder} was recorded with other weights of {plan.target.name} (fingerprint {known[:12]}, here "
                f"{here[:12]}); put back the weights that were recorded, or record with these"
            )
        for entry in manifest.shards:
            size = (folder / entry.file).stat().st_size if (folder / entry.file).is_file() else None
            if size != entry.bytes:
                has = "is not there" if size is None else f"has {size} bytes, its manifest says {entry.bytes}"
                yield f"{folder / entry.file} (recorded features) {has}; restore it, or record these features again"


def _changed(path: Path, file: DataFile) -> str | None:
    size = path.stat().st_size
    if size != file.bytes:
        return f"it has {size} bytes, the plan says {file.bytes}"
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return None if digest == file.sha256 else f"its sha256 is {digest[:12]}, the plan says {file.sha256[:12]}"


def _weights(plan: Plan) -> Iterator[str]:
    if plan.target.random_seed is not None or plan.ops("ckpt"):
        return
    try:
        find_folder(plan.target, Path(plan.base))
    except ValueError as error:
        yield str(error)


def _devices(plan: Plan) -> Iterator[str]:
    for name, gpus in dict.fromkeys((role.device, role.gpus) for role in plan.roles):
        if name == "cpu":
            continue
        if not torch.cuda.is_available():
            yield (
                f'the plan runs on device="{name}", and torch {torch.__version__} sees no GPU; run it on a machine '
                'with one, or set topology=Colocated(device="cpu")'
            )
            continue
        count = torch.cuda.device_count()
        if missing := [gpu for gpu in gpus if gpu >= count]:
            yield f"the plan runs on gpus={list(gpus)}, and this machine has GPUs 0 to {count - 1}; leave out {missing}"
            continue
        for gpu in gpus or (0,):
            have = torch.cuda.get_device_properties(gpu).total_memory
            if have < MEMORY_SHARE * plan.device.memory_bytes:
                yield (
                    f'the plan assumes device="{name}" with {plan.device.memory_bytes / 2**30:.0f} GiB, and '
                    f"{torch.cuda.get_device_name(gpu)} has {have / 2**30:.0f} GiB; declare the device that is here"
                )


def _disk(plan: Plan, folder: Path) -> Iterator[str]:
    need = checkpoint_bytes(plan) * _kept(plan)
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        yield (
            f"{place} has {free / 2**30:.1f} GiB free, and the checkpoints take up to {need / 2**30:.1f} GiB; "
            "lower Checkpoint(keep=...), or give another output_dir"
        )


def checkpoint_bytes(plan: Plan) -> int:
    """Tensor bytes of one checkpoint: float32 masters and two moments of what is trained, and the vocabulary map."""
    parameters = [
        p for op in plan.ops() if isinstance(op.settings, TrainSettings) for p in op.settings.draft.parameters
    ]
    trained = sum(12 * p.count for p in parameters if p.trainable)
    return trained + sum(p.bytes for p in parameters if not p.trainable and p.name in ("d2t", "t2d"))


def _kept(plan: Plan) -> int:
    """Checkpoints on disk at once at most: the kept ones, the best, and the one being written."""
    keep = [op.settings.keep for op in plan.ops() if isinstance(op.settings, CheckpointSettings)]
    return max(keep, default=1) + 2
