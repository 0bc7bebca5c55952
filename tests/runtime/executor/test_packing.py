"""In: toy runs whose micro-steps are filled by tokens. Out: they learn the same, and resume at the same bits."""

import io
import json

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.runtime.run import run

pytestmark = pytest.mark.cpu
WHOLE = {"max_steps": 2, "schedule_steps": 2, "accumulation": 1, "learning_rate": 1e-3, "eps": 1e-3}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finished(plan, folder):
    return run(attrs.evolve(plan, output_dir=folder), Console(file=io.StringIO()))


def masters(result, file="draft.safetensors"):
    return load_file(result.checkpoint / file)


def training(folder):
    with open(f"{folder}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def lengths(toy):
    return [len(json.loads(line)["input_ids"]) for line in (toy.base / "train.jsonl").read_text().splitlines()]


def test_one_pack_of_all_documents_equals_one_batch_of_them(toy):
    """Another order inside the pack, so another order of sums: rounding only."""
    packed = finished(toy.plan(train={**WHOLE, "batch_documents": None, "pack_tokens": 22 * 24}), "packed")
    batch = finished(toy.plan(train={**WHOLE, "batch_documents": 22}), "batch")
    assert [line["tokens"] for line in training("packed")] == [sum(lengths(toy))] * 2
    for name, tensor in masters(batch).items():
        torch.testing.assert_close(masters(packed)[name], tensor, rtol=0, atol=1e-5)


def test_steps_and_schedule_follow_from_the_packs(toy):
    """Accumulation of packs of at most 60 tokens; an epoch is every token, and every epoch has as many steps."""
    settings = {"batch_documents": None, "pack_tokens": 60, "accumulation": 2, "epochs": 3}
    result = finished(toy.plan(train=settings), "packed")
    lines = training("packed")
    assert all(line["tokens"] <= 120 for line in lines)
    assert result.step == len(lines)
    per_epoch, rest = divmod(len(lines), 3)
    assert rest == 0
    for epoch in range(3):
        some = lines[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert {line["epoch"] for line in some} == {epoch}
        assert sum(line["tokens"] for line in some) == sum(lengths(toy))
    assert lines[-1]["learning_rate"] < lines[len(lines) // 2]["learning_rate"] < 3e-3


def test_a_packed_run_goes_on_where_it_ended_bit_for_bit(toy):
    settings = {"batch_documents": None, "pack_tokens": 50, "accumulation": 2, "epochs": 4, "schedule_steps": 20}
    finished(toy.plan(train={**settings, "max_steps": 7}), "run")
    longer = finished(toy.plan(train={**settings, "max_steps": 13}), "run")
    whole = finished(toy.plan(train={**settings, "max_steps": 13}), "whole")
    for file in ("draft.safetensors", "optimizer.safetensors"):
        some, other = masters(longer, file), masters(whole, file)
        assert all(torch.equal(some[name], other[name]) for name in other)


def packed_capture(plan):
    """The plan with its captures end to end."""
    (role,) = plan.roles
    ops = tuple(
        attrs.evolve(op, settings=attrs.evolve(op.settings, packed=True)) if op.kind == "capture" else op
        for op in role.ops
    )
    return attrs.evolve(plan, roles=(attrs.evolve(role, ops=ops),))


def test_packed_capture_trains_as_padded_capture_does_and_resumes_at_the_same_bits(toy):
    """A step of six documents is captured in forwards of four and two, by length."""
    settings = {"batch_documents": 3, "schedule_steps": 8, "learning_rate": 1e-3, "eps": 1e-3}
    longer = toy.plan(train={**settings, "max_steps": 7})
    padded, packed = finished(longer, "padded"), finished(packed_capture(longer), "packed")
    for name, tensor in masters(padded).items():
        torch.testing.assert_close(masters(packed)[name], tensor, rtol=0, atol=1e-5)
    assert not all(torch.equal(masters(packed)[name], tensor) for name, tensor in masters(padded).items())
    finished(packed_capture(toy.plan(train={**settings, "max_steps": 3})), "parts")
    resumed = finished(packed_capture(longer), "parts")
    assert all(torch.equal(masters(resumed)[name], tensor) for name, tensor in masters(packed).items())
