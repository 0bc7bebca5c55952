"""In: sums and counts of a step. Out: its metrics by name, and `metrics.jsonl`, one JSON line per logged step.

Legend: K TTT steps. A step's tensors travel to the host as one vector, once per optimizer step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specforge.runtime.checkpoint.save import write_text
from specforge.runtime.writing import writing

# what a step gives per TTT step: its normalised loss, then numerators and their denominators
SUMS = ("ploss_K", "correct_K", "rows_K", "acceptance_K", "kept_K")
# fields that differ between two runs of the same plan: everything else in a line is reproducible
TIMING = ("seconds", "tokens_per_s", "waiting_share")


Sums = Mapping[str, torch.Tensor]


def vector(sums: Sums) -> torch.Tensor:
    """float64 [len(SUMS)·K]: the sums for their one transfer to the host."""
    return torch.cat([sums[name].detach().to(torch.float64) for name in SUMS])


def from_vector(told: torch.Tensor) -> dict[str, torch.Tensor]:
    """The sums back from `vector`."""
    return dict(zip(SUMS, told.view(len(SUMS), -1), strict=True))


def total(parts: Sequence[Sums]) -> dict[str, torch.Tensor]:
    """The sums of several micro-steps."""
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in SUMS}


def ratios(sums: Sums, position_decay: float) -> dict[str, float]:
    """Metrics of sums on the host: loss, acc, simulated_acceptance_length; ploss_i, acc_i, acceptance_rate_i per step;
    kept_share, of supervised rows whose teacher argmax is in the draft vocabulary: only they teach.

    `loss` weights ploss_i with position_decay ** i. `acc` is over all TTT steps. `simulated_acceptance_length` is
    acc_0 + acc_0·acc_1 + ...: no bonus token, and a proxy, since the factors are not conditional. A ratio over no rows
    is 0.
    """
    ploss = sums["ploss_K"].tolist()
    acc = _ratio(sums["correct_K"], sums["rows_K"])
    acceptance = _ratio(sums["acceptance_K"], sums["kept_K"])
    found = {
        "loss": sum(position_decay**k * value for k, value in enumerate(ploss)),
        "acc": float(sums["correct_K"].sum() / sums["rows_K"].sum().clamp(min=1)),
        "simulated_acceptance_length": simulated_acceptance_length(acc),
        "kept_share": float(sums["kept_K"].sum() / sums["rows_K"].sum().clamp(min=1)),
    }
    for name, values in (("ploss", ploss), ("acc", acc), ("acceptance_rate", acceptance)):
        found |= {f"{name}_{k}": value for k, value in enumerate(values)}
    return found


def simulated_acceptance_length(acc: Sequence[float]) -> float:
    """Sum of the running products of the accuracies per position."""
    length, product = 0.0, 1.0
    for value in acc:
        product *= value
        length += product
    return length


class MetricsFile:
    """`metrics.jsonl` of a run. Opened at a step: lines of later steps, and a line a kill cut off, are dropped."""

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        if path.exists():
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
            write_text(path, "".join(f"{line}\n" for line in lines))
        with writing(path.name, path.parent):
            self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Append a line. NaN and infinity become null: JSON has neither."""
        with writing(self._path.name, self._path.parent):
            self._file.write(json.dumps({key: finite_or_none(value) for key, value in line.items()}) + "\n")
            self._file.flush()

    def close(self) -> None:
        with writing(self._path.name, self._path.parent):
            self._file.close()


class Unwritten:
    """In place of the file, on a rank that writes none."""

    def write(self, line: dict[str, Any]) -> None:
        return None

    def close(self) -> None:
        return None


def _ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> list[float]:
    return (numerator / denominator.clamp(min=1)).tolist()


def finite_or_none(value: Any) -> Any:
    """None for NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
