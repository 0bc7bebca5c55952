"""In: a dated folder of results, one folder per seed. Out: acceptance.png there: accuracy and acceptance by step.

python plot.py 2026-12-01     # needs matplotlib
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

folder = Path(__file__).parent / sys.argv[1]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for seed, colour in zip(sorted(folder.glob("seed-*")), ("C0", "C1", "C2")):
    lines = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    reports = sorted((json.loads(f.read_text()) for f in seed.glob("eval-[!f]*.json")), key=lambda r: r["step"])
    for k in range(3):
        left.plot([x["step"] for x in lines], [x[f"acc_{k}"] for x in lines], colour, alpha=1 - 0.3 * k)
    right.plot([r["step"] for r in reports], [r["acceptance_length"] for r in reports], f"{colour}o-", label=seed.name)
left.set(xlabel="optimizer step", ylabel="top-1 accuracy of TTT steps 0, 1, 2 (paler), training", ylim=(0, 0.7))
right.plot([500, 1500, 3123], [1.61, 1.88, 2.08], "kx--", label="public reference implementation")
right.set(xlabel="optimizer step", ylabel="tokens per verify, depth 5, bonus counted", ylim=(1, 2.3))
right.legend()
figure.tight_layout()
figure.savefig(folder / "acceptance.png", dpi=110)
