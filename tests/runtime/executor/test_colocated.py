"""In: toy plans. Out: whole runs in this process: learning, evaluation, vocabulary map, precision, files."""

import io
import json
import os
import sys

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from specforge.runtime.checkpoint.load import load
from specforge.runtime.executor.work import work
from specforge.runtime.run import run

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Runs start in the toy's folder, on one thread: toy matrices are smaller than what threads cost."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quiet(plan):
    return run(plan, Console(file=io.StringIO()))


def lines(folder="run"):
    with open(f"{folder}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def masters(result):
    return load_file(result.checkpoint / "draft.safetensors")


def equal(some, other):
    return some.keys() == other.keys() and all(torch.equal(some[name], other[name]) for name in some)


def test_a_run_learns_evaluates_and_exports(toy):
    result = quiet(toy.plan(train={"learning_rate": 2e-2, "epochs": 10}, evaluate=20))
    assert (result.exit_code, result.step) == (0, 60)
    training = [line for line in lines() if "evaluation" not in line]
    held_out = [line for line in lines() if "evaluation" in line]
    assert [line["step"] for line in training] == list(range(1, 61))
    assert sum(line["loss"] for line in training[-6:]) < 0.8 * sum(line["loss"] for line in training[:6])
    assert [line["step"] for line in held_out] == [20, 40, 60]
    assert result.best_score == max(line["simulated_acceptance_length"] for line in held_out)
    assert sum(line["tokens"] for line in training[:6]) == sum(len(d) for d in tokens_of(toy)), (
        "an epoch is every token"
    )
    assert {path.name for path in result.exports[0].iterdir()} == {"config.json", "model.safetensors"}
    assert os.readlink("run/checkpoints/latest") == "step-000060"
    state = load(result.checkpoint).state
    assert (state.step, state.epoch, state.position, state.max_steps) == (60, 10, 0, 60)


def tokens_of(toy):
    return [json.loads(line)["input_ids"] for line in (toy.base / "train.jsonl").read_text().splitlines()]


def test_evaluation_does_not_touch_training(toy):
    without = quiet(toy.plan())
    with_it = quiet(attrs.evolve(toy.plan(evaluate=2), output_dir="evaluated"))
    assert equal(masters(without), masters(with_it))


def test_the_same_plan_gives_the_same_bits_and_another_seed_does_not(toy):
    first = quiet(toy.plan())
    again = quiet(attrs.evolve(toy.plan(), output_dir="again"))
    other = quiet(attrs.evolve(toy.plan(), output_dir="other", seed=8))
    assert equal(masters(first), masters(again))
    assert not equal(masters(first), masters(other))


def test_accumulation_changes_rounding_only(toy):
    """2 micro-steps of 4 documents are a step of 8, in the order of the plan's seed."""
    settings = {"max_steps": 3, "schedule_steps": 3, "learning_rate": 1e-3, "eps": 1e-3}
    once = quiet(toy.plan(train={**settings, "batch_documents": 8, "accumulation": 1}))
    twice = quiet(attrs.evolve(toy.plan(train={**settings, "batch_documents": 4, "accumulation": 2}), output_dir="b"))
    for name, tensor in masters(once).items():
        torch.testing.assert_close(masters(twice)[name], tensor, rtol=0, atol=1e-5)


def test_bfloat16_keeps_float32_masters(toy):
    result = quiet(toy.plan(train={"precision": "bfloat16"}))
    saved = masters(result)
    assert saved["fc.weight"].dtype == torch.float32
    assert not torch.equal(saved["fc.weight"], saved["fc.weight"].to(torch.bfloat16).float()), "more than bf16 holds"
    assert not torch.equal(saved["norm.weight"], torch.ones(32))


def test_the_vocabulary_map_is_never_made_again(toy):
    """A checkpoint with another valid map (the first 40 ids) is resumed with that map."""
    quiet(toy.plan(train={"max_steps": 2, "schedule_steps": 24}))
    file = "run/checkpoints/step-000002/draft.safetensors"
    tensors = load_file(file)
    assert tensors["d2t"].any(), "the data's own map is another one"
    tensors["d2t"], tensors["t2d"] = torch.zeros_like(tensors["d2t"]), torch.arange(96) < 40
    save_file(tensors, file)
    result = quiet(toy.plan(train={"max_steps": 4, "schedule_steps": 24}))
    assert result.step == 4
    assert not masters(result)["d2t"].any()
    assert torch.equal(masters(result)["t2d"], tensors["t2d"])


def test_a_map_that_is_none_is_refused(toy):
    quiet(toy.plan(train={"max_steps": 2, "schedule_steps": 24}))
    file = "run/checkpoints/step-000002/draft.safetensors"
    tensors = load_file(file)
    tensors["d2t"] += 1
    save_file(tensors, file)
    with pytest.raises(ValueError, match="are not one map"):
        quiet(toy.plan(train={"max_steps": 4, "schedule_steps": 24}))


def test_no_step_syncs_a_file_or_opens_a_database(toy, monkeypatch):
    """fsync only before the first and after the last step (log_every=1: the lines of the log count the steps)."""
    steps_at_sync, fsync = [], os.fsync

    def counted(descriptor):
        steps_at_sync.append(len(lines()) if os.path.exists("run/metrics.jsonl") else 0)
        fsync(descriptor)

    opened = []
    sys.addaudithook(lambda event, _: opened.append(event) if event == "sqlite3.connect" else None)
    monkeypatch.setattr(os, "fsync", counted)
    result = quiet(toy.plan())
    assert set(steps_at_sync) == {0, result.step}
    assert opened == []


def test_work_follows_the_edges(toy):
    found = work(toy.plan(evaluate=3))
    assert found.source.path == "train.jsonl"
    assert [e.source.path for e in found.evaluations] == ["heldout.jsonl"], "not the source its draft was trained on"
    assert [s.format for s in found.exports] == ["sglang"]
