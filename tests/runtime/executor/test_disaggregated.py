"""In: toy plans in both topologies. Out: the same bits, whoever is killed when; ends with their cause, soon."""

import io
import json
import os
import random
import signal
import threading
import time

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.runtime.checkpoint.load import load
from specforge.runtime.executor import disaggregated
from specforge.runtime.executor.layout import layout
from specforge.runtime.launch import ProcessError
from specforge.runtime.run import run
from specforge.runtime.run_folder import RunFolderError
from specforge.runtime.train.metrics import TIMING

pytestmark = pytest.mark.cpu
DEADLINE_S = 60
SETTINGS = {"epochs": 4, "precision": "bfloat16", "learning_rate": 1e-2}  # 24 steps


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quiet(plan):
    return run(plan, Console(file=io.StringIO()))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def logged(folder):
    """Lines of the log, of which the last may be half written."""
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def assert_same_run(some, other):
    """Weights, moments, step counts, progress and the log without its timing."""
    for file in ("draft.safetensors", "optimizer.safetensors"):
        one, two = (load_file(folder / "checkpoints" / "latest" / file) for folder in (some, other))
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
    states = [load(folder / "checkpoints" / "latest").state for folder in (some, other)]
    assert attrs.evolve(states[0], digest="") == attrs.evolve(states[1], digest="")
    logs = [[{k: v for k, v in line.items() if k not in TIMING} for line in lines(f)] for f in (some, other)]
    assert logs[0] == logs[1]


class At(threading.Thread):
    """Sends `number` to the process called `name`, once `moment` has come; keeps when it did."""

    def __init__(self, processes, name, moment, number=signal.SIGKILL):
        super().__init__(daemon=True)
        self.processes, self.name_of_process, self.moment, self.number = processes, name, moment, number
        self.before, self.sent_s = dict(processes), None
        self.start()

    def run(self):
        deadline = time.monotonic() + DEADLINE_S
        while not self.moment() or self.processes.get(self.name_of_process) is self.before.get(self.name_of_process):
            if time.monotonic() > deadline:
                return
        self.sent_s = time.monotonic()
        os.kill(self.processes[self.name_of_process].pid, self.number)


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 2)])
def test_both_topologies_give_the_same_bits(toy, forked, tmp_path, monkeypatch, servers, workers):
    """Workers are those of each server: batches end in any order."""
    monkeypatch.setattr(disaggregated, "layout", lambda p: attrs.evolve(layout(p), workers=workers))
    plan = toy.plan(train=SETTINGS, evaluate=5, checkpoint={"every": 7, "keep": 2})
    quiet(attrs.evolve(plan, output_dir="colocated"))
    result = quiet(attrs.evolve(toy.disaggregated(plan, servers), output_dir="apart"))
    assert (result.exit_code, result.step, len(result.exports)) == (0, 24, 1)
    assert_same_run(tmp_path / "colocated", tmp_path / "apart")
    assert list((tmp_path / "apart" / "features").iterdir()) == []
    assert all(process.poll() is not None for process in forked.values())


def test_packed_by_tokens_too(toy, forked, tmp_path):
    """Micro-steps filled by tokens, and several steps captured in one forward, end to end."""
    plan = toy.plan(train={**SETTINGS, "batch_documents": None, "pack_tokens": 48}, evaluate=5)
    (role,) = plan.roles
    ops = [
        attrs.evolve(op, settings=attrs.evolve(op.settings, batch_documents=20, packed=True))
        if op.kind == "capture"
        else op
        for op in role.ops
    ]
    plan = attrs.evolve(plan, roles=(attrs.evolve(role, ops=tuple(ops)),))
    results = [
        quiet(attrs.evolve(some, output_dir=name))
        for name, some in (("colocated", plan), ("apart", toy.disaggregated(plan)))
    ]
    assert results[0].step == results[1].step > 8
    assert_same_run(tmp_path / "colocated", tmp_path / "apart")


RANKS = {"batch_documents": 2, "accumulation": 1, "epochs": 2, "precision": "bfloat16", "learning_rate": 1e-2}


def test_two_trainers_apart_give_the_bits_of_two_in_one_topology(toy, forked, tmp_path):
    """22 documents in packs of 2 for 2 ranks: the last step of an epoch has none for rank 1, nor has an evaluation."""
    plan = toy.plan(train=RANKS, evaluate=4, checkpoint={"every": 5, "keep": 2}, ranks=2)
    quiet(attrs.evolve(plan, output_dir="colocated"))
    result = quiet(attrs.evolve(toy.disaggregated(plan, 2), output_dir="apart"))
    assert (result.exit_code, result.step, len(result.exports)) == (0, 12, 1)
    assert_same_run(tmp_path / "colocated", tmp_path / "apart")
    assert list((tmp_path / "apart" / "features").iterdir()) == []
    assert all(process.poll() is not None for process in forked.values())


def test_two_trainers_apart_are_killed_with_their_process_and_go_on(toy, forked, tmp_path, monkeypatch):
    monkeypatch.setattr(disaggregated, "layout", lambda plan: attrs.evolve(layout(plan), retain="features"))
    plan = toy.plan(train=RANKS, evaluate=4, checkpoint={"every": 2, "keep": 2}, ranks=2)
    quiet(attrs.evolve(plan, output_dir="whole"))
    killed = attrs.evolve(toy.disaggregated(plan), output_dir="killed")
    folder = tmp_path / "killed"
    for victim, steps in (("trainer", 3), ("controller", 6), ("server-0", 9)):
        at = At(forked, victim, lambda steps=steps: logged(folder) >= steps)
        with pytest.raises(ProcessError, match=rf"^{victim} was killed by SIGKILL"):
            quiet(killed)
        assert time.monotonic() - at.sent_s < 10
        assert all(process.poll() is not None for process in forked.values())
    assert 0 < load(folder / "checkpoints" / "latest").state.step < 12
    assert quiet(killed).step == 12
    assert_same_run(tmp_path / "whole", folder)


@pytest.mark.parametrize(("retain", "seed"), [("prompts", 5), ("features", 6)])
def test_killed_again_and_again_a_run_ends_at_the_same_bits(toy, forked, tmp_path, monkeypatch, retain, seed):
    """Eight kill -9, seeded, each process twice: at the start, or when some more steps are logged."""
    monkeypatch.setattr(disaggregated, "layout", lambda plan: attrs.evolve(layout(plan), retain=retain))
    plan = toy.plan(train=SETTINGS, evaluate=7, checkpoint={"every": 2, "keep": 2})
    quiet(attrs.evolve(plan, output_dir="whole"))
    killed = attrs.evolve(toy.disaggregated(plan), output_dir="killed")
    folder, chance = tmp_path / "killed", random.Random(seed)
    victims = ["controller", "worker-0", "server-0", "trainer"] * 2
    chance.shuffle(victims)
    for victim in victims:
        wanted = logged(folder) + chance.randint(0, 5)
        at = At(forked, victim, lambda wanted=wanted: logged(folder) >= wanted)
        with pytest.raises(ProcessError, match=rf"^{victim} was killed by SIGKILL"):
            quiet(killed)
        assert time.monotonic() - at.sent_s < 10
        assert all(process.poll() is not None for process in forked.values())
    assert 0 < load(folder / "checkpoints" / "latest").state.step < 24
    assert quiet(killed).step == 24
    assert_same_run(tmp_path / "whole", folder)


def test_the_end_of_any_process_is_the_end_of_the_run_with_its_cause(toy, forked, tmp_path):
    """A fault that the process itself tells: its last lines are in the message."""
    plan = toy.disaggregated(toy.plan(train=SETTINGS))
    at = At(forked, "worker-0", lambda: logged(tmp_path / "run") >= 3, signal.SIGTERM)
    with pytest.raises(ProcessError, match=r"^worker-0 was killed by SIGTERM"):
        quiet(plan)
    assert time.monotonic() - at.sent_s < 10
    bad = attrs.evolve(plan.target, geometry=attrs.evolve(plan.target.geometry, num_layers=6))
    with pytest.raises(
        ProcessError, match=r"(?s)ended with exit status 1\. Its last lines .*num_layers is 5, planned 6"
    ):
        quiet(attrs.evolve(plan, target=bad, output_dir="other"))


def test_ctrl_c_saves_exits_130_and_the_rest_follows(toy, forked, tmp_path):
    plan = toy.plan(train=SETTINGS)
    apart = attrs.evolve(toy.disaggregated(plan), output_dir="stopped")
    folder = tmp_path / "stopped"
    me = {"me": type("Me", (), {"pid": os.getpid()})}
    At(me, "me", lambda: logged(folder) >= 3, signal.SIGINT).before.clear()
    result = quiet(apart)
    assert result.exit_code == 130
    assert 3 <= result.step < 24
    assert len(lines(folder)) == result.step == load(result.checkpoint).state.step
    assert not (folder / "export").exists()
    assert all(process.poll() is not None for process in forked.values())
    assert quiet(apart).step == 24
    quiet(attrs.evolve(plan, output_dir="whole"))
    assert_same_run(tmp_path / "whole", folder)


def test_a_run_folder_in_use_is_refused(toy, forked, tmp_path):
    plan = toy.disaggregated(toy.plan(train=SETTINGS))
    refused = []

    def second():
        if logged(tmp_path / "run") < 2:
            return False
        with pytest.raises(RunFolderError, match="is in use by another run"):
            quiet(plan)
        refused.append(True)
        return True

    at = At(forked, "controller", second)
    with pytest.raises(ProcessError, match="controller was killed"):
        quiet(plan)
    at.join(DEADLINE_S)
    assert refused


def test_a_server_that_hangs_ends_the_run_and_not_in_a_wait(toy, forked, tmp_path, monkeypatch):
    limits = attrs.evolve(layout(toy.disaggregated(toy.plan())).limits, lease_s=0.5, attempts=2)
    monkeypatch.setattr(disaggregated, "layout", lambda plan: attrs.evolve(layout(plan), limits=limits))
    at = At(forked, "server-0", lambda: logged(tmp_path / "run") >= 2, signal.SIGSTOP)
    told = r"(?s)capture batch .* failed 2 times, the last time: .* did not answer"
    with pytest.raises(ProcessError, match=told):
        quiet(toy.disaggregated(toy.plan(train={**SETTINGS, "epochs": 1000})))
    assert time.monotonic() - at.sent_s < 20
    assert all(process.poll() is not None for process in forked.values())
