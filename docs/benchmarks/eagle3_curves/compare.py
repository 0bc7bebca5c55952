"""In: the runs of run.sh. Out: how far the curves of the two implementations lie apart beside those of two seeds.

    python compare.py OUT [--json FILE]

Per log line: the loss of TTT step 0 and the accuracy. "apart": mean over log lines of |Triton - PyTorch| for one seed;
"seeds apart": the same between two seeds of one implementation. Within noise: the first is not above the second.
"drift": the mean of Triton - PyTorch over the last third, per seed: of one sign and large, it would be a bias.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path
from statistics import mean

CURVES = ("ploss_0", "loss", "acc")
KINDS = ("triton", "torch")


def curves(folder: Path) -> dict[tuple[str, int], list[dict]]:
    found = {}
    for path in sorted(folder.glob("*-*/metrics.jsonl")):
        match = re.fullmatch(r"(triton|torch)-(\d+)", path.parent.name)
        if match:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[match[1], int(match[2])] = [line for line in lines if "ploss_0" in line]
    return found


def apart(a: list[dict], b: list[dict], curve: str) -> float:
    return mean(abs(x[curve] - y[curve]) for x, y in zip(a, b, strict=True))


def compared(found: dict[tuple[str, int], list[dict]]) -> list[dict]:
    seeds = sorted({seed for _, seed in found})
    rows = []
    for curve in CURVES:
        paths = {seed: apart(found["triton", seed], found["torch", seed], curve) for seed in seeds}
        pairs = [apart(found[kind, a], found[kind, b], curve) for kind in KINDS
                 for a, b in itertools.combinations(seeds, 2)]  # fmt: skip
        third = {
            seed: mean(x[curve] - y[curve] for x, y in lines[-max(1, len(lines) // 3) :])
            for seed in seeds
            for lines in [list(zip(found["triton", seed], found["torch", seed], strict=True))]
        }
        last = {kind: [found[kind, seed][-1][curve] for seed in seeds] for kind in KINDS}
        rows.append({"curve": curve, "apart": paths, "drift": third, "seeds_apart": pairs, "last": last})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = curves(given.folder)
    seeds = {seed for _, seed in found}
    missing = [f"{kind}-{seed}" for kind in KINDS for seed in sorted(seeds) if (kind, seed) not in found]
    if len(seeds) < 2 or missing:
        print(f"{given.folder}: needs two seeds of both implementations; not there: {', '.join(missing) or 'a seed'}")
        return 1
    rows = compared(found)
    for row in rows:
        paths, seeds = (", ".join(f"{x:.4g}" for x in xs) for xs in (row["apart"].values(), row["seeds_apart"]))
        verdict = "within noise" if max(row["apart"].values()) <= min(row["seeds_apart"]) else "NOT within noise"
        print(f"{row['curve']:8s} implementations apart {paths}; seeds apart {seeds}: {verdict}")
        print(f"{'':8s} drift {', '.join(f'{x:+.4g}' for x in row['drift'].values())}")
        for kind, last in row["last"].items():
            print(f"{'':8s} last of {kind}: {', '.join(f'{x:.4f}' for x in last)}")
    if given.json:
        kept = {f"{kind}-{seed}": [{k: line[k] for k in ("step", *CURVES)} for line in lines]
                for (kind, seed), lines in found.items()}  # fmt: skip
        given.json.write_text(json.dumps({"compared": rows, "curves": kept}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
