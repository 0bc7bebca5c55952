"""In: sums and lines. Out: ratios by hand, the resumed metrics file, and a progress line without a terminal."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from specforge.runtime.step.eagle3 import SUMS as STEP_SUMS
from specforge.runtime.train.metrics import SUMS, MetricsFile, from_vector, ratios, total, vector
from specforge.runtime.train.progress import PlainProgress, TerminalProgress, duration, open_progress

pytestmark = pytest.mark.cpu


def sums(ploss, correct, rows, acceptance, kept):
    values = (ploss, correct, rows, acceptance, kept)
    return {name: torch.tensor(v, dtype=torch.float64) for name, v in zip(SUMS, values, strict=True)}


def test_the_step_gives_these_sums():
    assert SUMS == STEP_SUMS


def test_ratios_are_made_of_summed_counts():
    """eagle.md section 6: corrects [3,2]/[4,4] and [1,0]/[1,1] give accuracies .8 and .4, and length 1.12."""
    parts = [
        sums([1.0, 2.0], [3, 2], [4, 4], [1.0, 0.5], [2, 1]),
        sums([0.5, 0.25], [1, 0], [1, 1], [0.5, 0.0], [1, 0]),
    ]
    found = ratios(from_vector(vector(total(parts))), position_decay=0.8)
    assert found["acc_0"] == pytest.approx(0.8)
    assert found["acc_1"] == pytest.approx(0.4)
    assert found["simulated_acceptance_length"] == pytest.approx(1.12)
    assert found["acc"] == pytest.approx(0.6)
    assert (found["ploss_0"], found["ploss_1"]) == (1.5, 2.25)
    assert found["loss"] == pytest.approx(1.5 + 0.8 * 2.25)
    assert (found["acceptance_rate_0"], found["acceptance_rate_1"]) == (0.5, 0.5)
    assert found["kept_share"] == pytest.approx(4 / 10)


def test_no_rows_give_zero_not_nan():
    found = ratios(sums([0.0], [0], [0], [0.0], [0]), 0.8)
    assert set(found.values()) == {0.0}


def test_a_resumed_file_drops_later_and_cut_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for step in (1, 2, 3):
        first.write({"step": step, "loss": step / 4, "grad_norm": math.nan})
    first.close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    second = MetricsFile(path, 2)
    second.write({"step": 3, "loss": 0.5})
    second.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["grad_norm"] is None, "JSON has no NaN"
    assert lines[2] == {"step": 3, "loss": 0.5}


LINE = {"step": 5, "loss": 1.25, "acc": 0.5, "tokens_per_s": 12345.6, "waiting_share": 0.07}


def test_without_a_terminal_progress_is_plain_lines():
    out = io.StringIO()
    progress = open_progress("toy", 10, Console(file=out))
    assert isinstance(progress, PlainProgress)
    progress.step(5, 65.0)
    progress.metrics(LINE)
    progress.close()
    assert out.getvalue() == "step 5/10  loss 1.2500  acc 0.500  12,346 tokens/s  waiting 7%  ETA 1:05\n"


def test_on_a_terminal_progress_is_a_bar():
    out = io.StringIO()
    progress = open_progress("toy", 10, Console(file=out, force_terminal=True, width=150))
    assert isinstance(progress, TerminalProgress)
    progress.metrics(LINE)
    progress.step(5, 3725.0)
    progress.note("step 5: saved [here]")
    progress.close()
    for part in ("toy", "5/10", "loss 1.2500", "acc 0.500", "12,346 tokens/s", "waiting 7%", "ETA 1:02:05", "[here]"):
        assert part in out.getvalue()


def test_durations():
    assert [duration(s) for s in (None, 0.4, 59.6, 3600)] == ["-", "0:00", "1:00", "1:00:00"]
