"""In: this machine. Out: the step's bench for it, then each kernel's: `make bench`.

python docs/benchmarks/run.py [--json FILE]     FILE: the step's rows, as docs/benchmarks/tables.py reads them
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels/specforge_kernels"
GPU_STEP = ("docs/benchmarks/eagle3_step/bench.py", "--check", "--kernels")
CPU_STEP = ("docs/benchmarks/cpu_step/bench.py", "recipes/tiny_eagle3.py", "recipes/smollm2_eagle3.py")


def commands(cuda: bool) -> list[tuple[str, ...]]:
    """The step first. `bench_kernel.py` is of a kernel that runs on a GPU only."""
    names = ("bench.py", "bench_kernel.py") if cuda else ("bench.py",)
    kernels = sorted(path for name in names for path in KERNELS.glob(f"*/{name}"))
    return [GPU_STEP if cuda else CPU_STEP, *((str(path.relative_to(ROOT)),) for path in kernels)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the step's rows here")
    asked = parser.parse_args()
    step, *kernels = commands(torch.cuda.is_available())
    if asked.json:
        step = (*step, "--json", str(asked.json.absolute()))
    for command in (step, *kernels):
        print("==", *command, flush=True)
        if status := subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
