"""In: results named in a README of docs/benchmarks or of a kernel. Out: its tables, written between their two marks.

A table stands between `<!-- table of RESULTS.json -->`, or `<!-- table of RESULTS.json KERNEL -->` for that kernel's
rows in it, and `<!-- end -->`. `python docs/benchmarks/tables.py` makes all of them again (`make docs`);
tests/test_benchmarks.py fails where one is not what its results give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels/specforge_kernels"
MARKED = re.compile(r"(<!-- table of (\S+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
# ms and GiB on one H200 that a step was to reach, or a share of another row's
BARS = {"T 2048": (65, 5.5), "T 8192": (255, 13), "4 x 2048": (235, 13), "T 16384": (580, 24)}
TURNS, WHOLE, TURNS_SHARE = "T 8192, 40 % in turns", "T 8192", 0.5
MANY, PER_ROW_SHARE = "64 documents of 64..512", 1.1
CPU_RATIO = 1.4
ORIGIN = {"TFLOP/s": "a bfloat16 matmul of 8192 cubed", "GB/s": "a copy of 4 GiB, read and written"}


def gpu_step(rows: list[dict[str, Any]]) -> list[str]:
    """EAGLE3 steps on a GPU, from docs/benchmarks/eagle3_step/bench.py."""
    by_name = {row["name"]: row for row in rows}
    lines = ["| step | ms (other run) | peak GiB | floor ms | ratio | bar |", "|---|---|---|---|---|---|"]
    for name, row in by_name.items():
        lines.append(
            f"| {name} | {row['ms']:.1f} ({row['other_run_ms']:.1f}) | {row['peak_gib']:.2f} | {row['floor_ms']:.1f} "
            f"| {row['ratio']:.2f} | {_bar(name, row, by_name)} |"
        )
    return lines


def _bar(name: str, row: dict[str, Any], by_name: dict[str, Any]) -> str:
    if name in BARS:
        ms, gib = BARS[name]
        return f"{ms} ms: {_verdict(row['ms'], ms)}; {gib} GiB: {_verdict(row['peak_gib'], gib)}"
    if name == TURNS and WHOLE in by_name:
        return f"{TURNS_SHARE} x {WHOLE}: {_verdict(row['ms'] / by_name[WHOLE]['ms'], TURNS_SHARE)}"
    if name == MANY and WHOLE in by_name:
        other = by_name[WHOLE]["us_per_supervised"]
        return (
            f"{PER_ROW_SHARE} x the {other:.1f} us per supervised row of {WHOLE}: "
            f"{_verdict(row['us_per_supervised'], PER_ROW_SHARE * other)}"
        )
    return ""


def _verdict(value: float, bar: float) -> str:
    return f"met, {value:.3g}" if value <= bar else f"missed by {value / bar - 1:.1%}"


def cpu_step(rows: list[dict[str, Any]]) -> list[str]:
    """Steps on a CPU, from docs/benchmarks/cpu_step/bench.py."""
    lines = [
        "| recipe | rows (supervised) | step ms | matmuls ms | ratio (quartiles) | bar |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ratio_quartiles"]
        lines.append(
            f"| {row['recipe']} | {row['rows']} ({row['supervised']}) | {row['step_ms']:.1f} | {row['matmuls_ms']:.1f} "
            f"| {row['ratio']:.2f} ({low:.2f} to {high:.2f}) | {CPU_RATIO}: {_verdict(row['ratio'], CPU_RATIO)} |"
        )
    return lines


def kernel(found: dict[str, Any]) -> list[str]:
    """Rows of one kernel, from its bench_kernel.py; a column for each other way of doing the same."""
    rows, ceilings = found["rows"], found["ceilings"]
    others = list(dict.fromkeys(name for row in rows for name in row["others"]))
    lines = [
        " | ".join(["| case", "what", "ms (quartiles)", "rate", "of the ceiling", *(f"{o}, ms" for o in others)])
        + " |",
        "|---" * (5 + len(others)) + "|",
    ]
    for row in rows:
        spread = f"{_short(row['ms'])} ({_short(row['low'])} to {_short(row['high'])})"
        ways = [_short(row["others"][o]) if row["others"].get(o) else "" for o in others]
        cells = [row["case"], row["what"], spread, f"{row['rate']:.0f} {row['unit']}", f"{row['share']:.0%}", *ways]
        lines.append("| " + " | ".join(cells) + " |")
    used = {row["unit"] for row in rows}
    said = ", ".join(f"{rate:.0f} {unit} ({ORIGIN[unit]})" for unit, rate in ceilings.items() if unit in used)
    return [*lines, "", f"Ceiling, in the same run: {said}."]


def _short(ms: float) -> str:
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def table(results: Path, kernel_name: str | None = None) -> str:
    found = json.loads(results.read_text())
    if kernel_name:
        return "\n".join(kernel(found["kernels"][kernel_name])) + "\n"
    lines: Iterable[str] = (cpu_step if "recipe" in found["rows"][0] else gpu_step)(found["rows"])
    return "\n".join(lines) + "\n"


def remade(readme: Path) -> str:
    """The README's text with every table as its results give it."""

    def fill(match: re.Match[str]) -> str:
        return match[1] + table(readme.parent / match[2], match[3]) + match[4]

    return MARKED.sub(fill, readme.read_text())


def readmes() -> list[Path]:
    found = [*HERE.glob("*/README.md"), *KERNELS.glob("*/README.md")]
    return sorted(path for path in found if MARKED.search(path.read_text()))


if __name__ == "__main__":
    for path in readmes():
        path.write_text(remade(path))
        print(path)
