"""In: this machine. Out: the step's bench for it, then each kernel's: `make bench`.

python docs/benchmarks/run.py [--json FILE]     FILE: all rows, as docs/benchmarks/tables.py reads them
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels/specforge_kernels"
GPU_STEP = ("docs/benchmarks/eagle3_step/bench.py", "--check")
CPU_STEP = ("docs/benchmarks/cpu_step/bench.py", "recipes/tiny_eagle3.py", "recipes/smollm2_eagle3.py")


def benches(cuda: bool) -> dict[str, Path]:
    """Of each kernel that has one for this kind of machine: `bench_kernel.py` is of Triton on a GPU."""
    return {path.parent.name: path for path in sorted(KERNELS.glob("*/bench_kernel.py" if cuda else "*/bench.py"))}


def ran(command: tuple[str, ...], json_file: Path | None = None) -> Any:
    """What the command wrote to `json_file`; SystemExit with its status where it failed."""
    command = (*command, "--json", str(json_file)) if json_file else command
    print("==", *command, flush=True)
    if status := subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode:
        raise SystemExit(status)
    return json.loads(json_file.read_text()) if json_file else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    asked, cuda = parser.parse_args(), torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "rows.json"
        found = ran(GPU_STEP if cuda else CPU_STEP, written)
        found["kernels"] = {
            name: ran((str(path.relative_to(ROOT)),), written if cuda else None) for name, path in benches(cuda).items()
        }
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
