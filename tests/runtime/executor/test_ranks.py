"""In: toy plans of two ranks. Out: what one rank learns from the same packs; the same bits again; who writes what."""

import io
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.runtime.checkpoint.state import CheckpointError
from specforge.runtime.run import run
from specforge.runtime.train.launch import RankDied
from specforge.runtime.train.metrics import TIMING

pytestmark = pytest.mark.cpu
SHORT = {"max_steps": 7, "schedule_steps": 7, "learning_rate": 1e-3, "eps": 1e-3}  # the sixth step ends an epoch


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finished(plan, folder="run"):
    return run(attrs.evolve(plan, output_dir=folder), Console(file=io.StringIO()))


def lines(folder):
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def masters(result, file="draft.safetensors"):
    return load_file(result.checkpoint / file)


def assert_equal_bits(some, other):
    for file in ("draft.safetensors", "optimizer.safetensors"):
        one, two = masters(some, file), masters(other, file)
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []


LOSSES = {
    "tokens": {},
    "rows": {"reduction": "rows"},
    "LK alpha": {"lk": "alpha"},
    "LK lambda by rows": {"lk": "lambda", "reduction": "rows", "kl_decay": 3.0},
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("measure", [{"batch_documents": 2}, {"batch_documents": None, "pack_tokens": 48}])
def test_two_ranks_learn_what_one_rank_learns_of_the_same_packs(toy, train_settings, loss, measure):
    """Two ranks of one micro-step beside one rank of two: the same packs, so the same sums but for rounding.

    22 documents make epochs that end with one pack: there a rank has none, and does not hang.
    """
    eagle3 = attrs.evolve(train_settings.eagle3, **LOSSES[loss])
    settings = {**SHORT, **measure, "eagle3": eagle3}
    evaluate = 3 if loss == "tokens" else None
    two = finished(toy.plan(train={**settings, "accumulation": 1}, evaluate=evaluate, ranks=2), "two")
    one = finished(toy.plan(train={**settings, "accumulation": 2}, evaluate=evaluate), "one")
    for mine, other in zip(lines("two"), lines("one"), strict=True):
        assert mine.keys() == other.keys()
        assert mine.get("evaluation") == other.get("evaluation")
        compared = mine.keys() - {"evaluation", *TIMING}
        assert {k: mine[k] for k in compared} == pytest.approx({k: other[k] for k in compared}, rel=1e-5)
    for name, tensor in masters(one).items():
        torch.testing.assert_close(masters(two)[name], tensor, rtol=0, atol=1e-6)


def test_the_same_ranks_give_the_same_bits_whole_or_resumed(toy):
    settings = {"schedule_steps": 20, "accumulation": 1, "precision": "bfloat16"}
    first = finished(toy.plan(train={**settings, "max_steps": 12}, ranks=2), "first")
    finished(toy.plan(train={**settings, "max_steps": 5}, ranks=2), "parts")
    resumed = finished(toy.plan(train={**settings, "max_steps": 12}, ranks=2), "parts")
    assert_equal_bits(first, resumed)
    assert [line["step"] for line in lines("parts")] == list(range(1, 13)), "one rank writes the log, once"
    assert {path.name for path in Path("parts/checkpoints").iterdir()} == {"latest", "step-000012", "step-000005"}


def test_another_number_of_ranks_is_refused_with_what_to_undo(toy):
    finished(toy.plan(train={**SHORT, "max_steps": 2}, ranks=2))
    with pytest.raises(CheckpointError, match=r"(?s)roles.trainer.ranks: 2 -> 1.*Undo these changes to resume it, or"):
        finished(toy.plan(train={**SHORT, "max_steps": 4}))


def test_a_sample_of_another_rank_is_named(toy):
    """Every rank meets the same verdict, whoever has the sample."""
    with pytest.raises(ValueError, match=r"(?s)step 2: the loss is not finite; the samples are row \d+ of train.jsonl"):
        finished(toy.plan(train={"learning_rate": 1e30}, ranks=2))


def test_three_ranks_with_one_document_each_and_one_for_the_last_step(toy):
    result = finished(toy.plan(train={"batch_documents": 1, "accumulation": 1, "epochs": 1}, ranks=3))
    assert result.step == 8
    assert lines("run")[-1]["tokens"] <= 24, "the 22nd document"


class Meanwhile:
    """While a run of this process trains, `action` once it has logged `after` steps; `when` it was done."""

    def __init__(self, folder, after, action):
        self.folder, self.after, self.action, self.when = folder, after, action, None
        threading.Thread(target=self.act).start()

    def act(self):
        deadline = time.monotonic() + 60
        while logged(self.folder) < self.after:
            if time.monotonic() > deadline:
                return
        self.action()
        self.when = time.monotonic()


def logged(folder):
    try:
        return Path(folder, "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def kill(rank):
    pids = sorted(child.pid for child in multiprocessing.active_children())
    os.kill(pids[rank], signal.SIGKILL)


def test_killed_ranks_end_the_run_a_signal_stops_it_and_it_ends_at_the_same_bits(toy):
    plan = toy.plan(train={"accumulation": 1, "epochs": 6}, checkpoint={"every": 3, "keep": 2}, evaluate=9, ranks=2)
    whole = finished(plan, "whole")
    for rank in (0, 1):
        moment = Meanwhile("run", logged("run") + 4, lambda rank=rank: kill(rank))
        with pytest.raises(RankDied, match=rf"rank {rank} .* was ended by SIGKILL, .* run it again to go on"):
            finished(plan)
        assert time.monotonic() - moment.when < 10
        assert multiprocessing.active_children() == []
    Meanwhile("run", logged("run") + 4, lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = finished(plan)
    assert (stopped.exit_code, stopped.exports) == (130, ())
    assert stopped.step < whole.step
    assert logged("run") == stopped.step + stopped.step // 9, "every step and evaluation before it was asked to stop"
    assert_equal_bits(finished(plan), whole)
    assert untimed("run") == untimed("whole")


def untimed(folder):
    return [{name: value for name, value in line.items() if name not in TIMING} for line in lines(folder)]
