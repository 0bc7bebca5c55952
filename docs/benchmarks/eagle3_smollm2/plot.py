"""In: a dated folder of results. Out: acceptance.png beside them: accuracy while training, acceptance length by step.

python plot.py 2026-12-01     # needs matplotlib
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

folder = Path(__file__).parent / sys.argv[1]
lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
reports = sorted((json.loads(f.read_text()) for f in folder.glob("eval-*.json")), key=lambda r: r["step"])

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for k in range(3):
    left.plot([x["step"] for x in lines], [x[f"acc_{k}"] for x in lines], label=f"TTT step {k}")
left.set(xlabel="optimizer step", ylabel="top-1 accuracy, training", ylim=(0, 0.7))
left.legend()
right.plot([r["step"] for r in reports], [r["acceptance_length"] for r in reports], "o-", label="specforge")
right.plot([500, 1500, 3123], [1.61, 1.88, 2.08], "x--", label="public reference implementation")
right.set(xlabel="optimizer step", ylabel="tokens per verify, depth 5, bonus counted", ylim=(1, 2.3))
right.legend()
figure.tight_layout()
figure.savefig(folder / "acceptance.png", dpi=110)
