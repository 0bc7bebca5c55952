"""In: toy tensors and states. Out: complete folders, links that never dangle, rotation, leftovers, refusals."""

import os
import signal
import subprocess
import sys
import time

import attrs
import pytest
import torch
from torch import nn

from specforge.runtime.checkpoint.load import find_latest, load, restore
from specforge.runtime.checkpoint.rotate import checkpoints, clean
from specforge.runtime.checkpoint.save import point, save
from specforge.runtime.checkpoint.state import Checkpoint, CheckpointError, State, draft_tensors

pytestmark = pytest.mark.cpu


class Draft(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.embed_tokens = nn.Embedding(5, width).requires_grad_(False)
        self.fc = nn.Linear(width, width, bias=False)
        self.register_buffer("d2t", torch.arange(4))
        self.register_buffer("t2d", torch.tensor([True, True, False, False, True]))


@pytest.fixture
def make(toy):
    plan = toy.plan()

    def checkpoint(step, best_step=None):
        draft = Draft()
        state = State(step, 0, step, 12, 12, 10, 5, 1, 1.5, best_step, plan.digest, {"loss": 0.25, "acc": None})
        tensors = draft_tensors(draft.to(torch.bfloat16), {"fc.weight": torch.full((3, 3), float(step) + 1e-6)})
        return Checkpoint(
            plan, state, tensors, {"exp_avg/fc.weight": torch.ones(3, 3), "step/fc.weight": torch.tensor(2.0)}
        )

    return checkpoint


@pytest.fixture
def parent(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def names(parent):
    return sorted(path.name for path in parent.iterdir())


def test_load_gives_back_what_was_saved(parent, make):
    saved = make(3)
    folder = save(parent, saved, keep=2)
    found = load(folder)
    assert found.plan == saved.plan
    assert found.state == saved.state
    for wrote, read in ((saved.draft, found.draft), (saved.optimizer, found.optimizer)):
        assert wrote.keys() == read.keys()
        assert all(torch.equal(wrote[n], read[n]) and wrote[n].dtype == read[n].dtype for n in wrote)
    assert found.draft["fc.weight"].dtype == torch.float32, "masters, not compute weights"
    assert "embed_tokens.weight" not in found.draft, "a frozen embedding is the target's"
    assert names(folder) == ["draft.safetensors", "optimizer.safetensors", "plan.json", "state.json"]


def test_links_are_relative_and_rotation_keeps_newest_and_best(parent, make):
    for step in range(1, 7):
        save(parent, make(step, best_step=2 if step >= 2 else None), keep=2)
    assert names(parent) == ["best", "latest", "step-000002", "step-000005", "step-000006"]
    assert os.readlink(parent / "latest") == "step-000006"
    assert os.readlink(parent / "best") == "step-000002"


def test_saving_a_step_again_replaces_it(parent, make):
    first = save(parent, make(4, best_step=4), keep=2)
    again = save(parent, make(4, best_step=4), keep=2)
    assert (first.name, again.name) == ("step-000004", "step-000004.1")
    assert find_latest(parent) == again.resolve()
    assert names(parent) == ["best", "latest", "step-000004.1"]
    assert save(parent, make(5), keep=1).name == "step-000005"
    assert names(parent) == ["best", "latest", "step-000004.1", "step-000005"]


def test_leftovers_of_a_kill_are_removed_and_never_resumed(parent, make):
    save(parent, make(1), keep=2)
    for left in (".saving-step-000002-1", ".removing-step-000000-1"):
        (parent / left).mkdir()
        (parent / left / "draft.safetensors").write_bytes(b"half")
    (parent / ".linking-latest-1").symlink_to("step-000002")
    assert [path.name for path in checkpoints(parent)] == ["step-000001"]
    clean(parent)
    assert names(parent) == ["latest", "step-000001"]


def test_a_kill_before_the_first_link_loses_nothing(parent, make):
    folder = save(parent, make(1), keep=2)
    (parent / "latest").unlink()
    assert find_latest(parent) == folder
    point(parent, "latest", "step-000009")
    assert find_latest(parent) == folder, "a dangling link is no checkpoint"
    assert find_latest(parent / "nowhere") is None


@pytest.mark.parametrize("file", ["draft.safetensors", "optimizer.safetensors", "plan.json", "state.json"])
def test_a_damaged_checkpoint_is_refused_by_name(parent, make, file):
    folder = save(parent, make(1), keep=2)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=f"step-000001 is not a complete checkpoint: {file}: .*point the link"):
        load(folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"a complete checkpoint: {file}: the file is not there; point"):
        load(folder)


def test_restore_names_every_tensor_that_does_not_fit(parent, make):
    folder = save(parent, make(1), keep=2)
    checkpoint = load(folder)
    draft = Draft()
    restore(checkpoint, draft, folder)
    assert torch.equal(draft.fc.weight, checkpoint.draft["fc.weight"])
    wrong = attrs.evolve(checkpoint, draft={**checkpoint.draft, "extra": torch.ones(1)})
    del wrong.draft["t2d"]
    with pytest.raises(CheckpointError) as error:
        restore(wrong, Draft(width=2), folder)
    for part in (
        "t2d is missing",
        "extra is unknown",
        "fc.weight has shape (3, 3), this draft needs (2, 2)",
        "step-000001",
    ):
        assert part in str(error.value)


SAVER = """
import sys
from pathlib import Path
import attrs
from specforge.runtime.checkpoint.load import find_latest, load
from specforge.runtime.checkpoint.save import save
parent = Path(sys.argv[1])
checkpoint = load(find_latest(parent))
step = checkpoint.state.step
while True:
    step += 1
    save(parent, attrs.evolve(checkpoint, state=attrs.evolve(checkpoint.state, step=step)), keep=1)
    print(step, flush=True)
"""


def test_latest_is_complete_whenever_the_kill_comes(parent, make):
    """kill -9 in a process that does nothing but save, at spread moments: `latest` loads, and is the newest or next."""
    save(parent, make(0), keep=1)
    for delay in (0.0, 0.0013, 0.0041, 0.0077):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, str(parent)], stdout=subprocess.PIPE, text=True)
        said = [int(saver.stdout.readline()) for _ in range(3)]
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline:
            pass
        saver.send_signal(signal.SIGKILL)
        said += [int(line) for line in saver.stdout.read().split()]
        saver.wait()
        assert load(parent / "latest").state.step in (said[-1], said[-1] + 1)
        clean(parent)
        assert not [name for name in names(parent) if name.startswith(".")]
