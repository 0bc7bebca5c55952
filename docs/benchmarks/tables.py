"""In: results beside a README of docs/benchmarks. Out: its tables, written between their two marks.

A table stands between `<!-- table of RESULTS.json -->` and `<!-- end -->`. `python docs/benchmarks/tables.py` makes all
of them again (`make docs`); tests/test_benchmarks.py fails where one is not what its results give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARKED = re.compile(r"(<!-- table of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
# ms and GiB on one H200 that a step was to reach, or a share of another row's
BARS = {"T 2048": (65, 5.5), "T 8192": (255, 13), "4 x 2048": (235, 13), "T 16384": (580, 24)}
TURNS, WHOLE, TURNS_SHARE = "T 8192, 40 % in turns", "T 8192", 0.5
MANY, PER_ROW_SHARE = "64 documents of 64..512", 1.1
CPU_RATIO = 1.4


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


def table(results: Path) -> str:
    found = json.loads(results.read_text())
    lines: Iterable[str] = (cpu_step if "recipe" in found["rows"][0] else gpu_step)(found["rows"])
    return "\n".join(lines) + "\n"


def remade(readme: Path) -> str:
    """The README's text with every table as its results give it."""

    def fill(match: re.Match[str]) -> str:
        return match[1] + table(readme.parent / match[2]) + match[3]

    return MARKED.sub(fill, readme.read_text())


def readmes() -> list[Path]:
    return sorted(path for path in HERE.glob("*/README.md") if MARKED.search(path.read_text()))


if __name__ == "__main__":
    for path in readmes():
        path.write_text(remade(path))
        print(path)
