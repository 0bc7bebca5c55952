"""In: a target with NaN in the embedding of one token. Out: rows with it are skipped, counted and named, everywhere."""

import io
import json
from pathlib import Path

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.runtime.checkpoint.load import load
from specforge.runtime.launch import ProcessError
from specforge.runtime.run import run
from specforge.runtime.target import Placement, load_target
from specforge.runtime.train.loop import NonFiniteError
from specforge.runtime.train.metrics import TIMING

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(toy, file):
    return [json.loads(line)["input_ids"] for line in (toy.base / file).read_text().splitlines()]


@pytest.fixture
def poisoned(toy):
    """A plan of 2 epochs whose target is not finite after one token, and the training rows that have it."""
    counts = {
        token: [i for i, row in enumerate(rows(toy, "train.jsonl"), 1) if token in row[:24]] for token in range(96)
    }
    held_out = {token for row in rows(toy, "heldout.jsonl") for token in row[:24]}
    token = next(token for token, found in counts.items() if len(found) == 2 and token in held_out)
    plan = toy.plan(train={"epochs": 2, "learning_rate": 1e-2}, evaluate=4)
    target = load_target(plan.target, toy.base, Placement("cpu", "float32"))
    with torch.no_grad():
        target.embedding_VH[token] = float("nan")
    target.model.save_pretrained(toy.base / "target")
    return attrs.evolve(plan, target=attrs.evolve(plan.target, folder="target", random_seed=None)), counts[token]


def budget(plan, samples):
    roles = [
        attrs.evolve(
            role,
            ops=tuple(
                attrs.evolve(op, settings=attrs.evolve(op.settings, nonfinite_budget=samples))
                if op.kind == "train"
                else op
                for op in role.ops
            ),
        )
        for role in plan.roles
    ]
    return attrs.evolve(plan, roles=tuple(roles))


def lines(folder):
    found = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMING} for line in found]


def test_both_topologies_skip_the_same_samples(toy, poisoned, forked):
    plan, lost = poisoned
    plan = budget(plan, 4)
    said = {}
    for name, some in (("one", plan), ("apart", toy.disaggregated(plan))):
        text = io.StringIO()
        result = run(attrs.evolve(some, output_dir=name), Console(file=text, width=1000))
        assert load(result.checkpoint).state.lost == 4, "two rows, twice"
        said[name] = [line for line in text.getvalue().splitlines() if "lost in capture" in line]
    assert said["one"] == said["apart"]
    for row in lost:
        assert len([line for line in said["one"] if f"row {row} of train.jsonl: aux_TC has values" in line]) == 2
    one, apart = (load_file(f"{name}/checkpoints/latest/draft.safetensors") for name in ("one", "apart"))
    assert all(torch.equal(one[name], apart[name]) for name in one)
    assert lines("one") == lines("apart")
    assert all(line["loss"] > 0 for line in lines("one"))
    (evaluated, *_) = (line for line in lines("one") if "evaluation" in line)
    assert evaluated["lost"] >= 1


def test_over_the_budget_the_run_stops_and_names_them(toy, poisoned, forked):
    plan, lost = poisoned
    message = (
        rf"row ({'|'.join(map(str, lost))}) of train\.jsonl: .*not finite.*Train\(nonfinite_budget=1\) allows no more"
    )
    with pytest.raises(NonFiniteError, match=message):
        run(budget(plan, 1), Console(file=io.StringIO()))
    with pytest.raises(ProcessError, match=r"(?s)^trainer ended with exit status 1.*" + message):
        run(attrs.evolve(budget(toy.disaggregated(plan), 1), output_dir="apart"), Console(file=io.StringIO()))


def test_a_step_of_nothing_but_lost_samples_is_passed_over(toy, poisoned, forked):
    """One document to a step: its steps change nothing, and the run ends at its last step."""
    plan, _ = poisoned
    (role,) = plan.roles
    ops = tuple(
        attrs.evolve(op, settings=attrs.evolve(op.settings, batch_documents=1, accumulation=1, nonfinite_budget=4))
        if op.kind == "train"
        else op
        for op in role.ops
    )
    plan = attrs.evolve(plan, roles=(attrs.evolve(role, ops=ops),))
    results = [
        run(attrs.evolve(some, output_dir=name), Console(file=io.StringIO()))
        for name, some in (("one", plan), ("apart", toy.disaggregated(plan)))
    ]
    assert [result.step for result in results] == [44, 44]
    assert len([line for line in lines("one") if "evaluation" not in line]) == 40
    assert lines("one") == lines("apart")
