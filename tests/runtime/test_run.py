"""In: toy plans, one run directory. Out: the lock, resume and its refusals, a finished run, the executors' table."""

import io
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from specforge.plan import load as load_plan
from specforge.runtime.checkpoint.state import CheckpointError
from specforge.runtime.run import EXECUTORS, run, topology
from specforge.runtime.run_folder import RunFolder, RunFolderError
from specforge.runtime.train.loop import NonFiniteError
from specforge.runtime.writing import WriteError

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quiet(plan):
    out = io.StringIO()
    return run(plan, Console(file=out)), out.getvalue()


def test_the_plan_that_runs_is_in_the_run_directory(toy):
    plan = toy.plan()
    quiet(plan)
    assert load_plan(Path("run/plan.json").read_text()) == plan
    assert json.loads(Path("run/result.json").read_text())["digest"] == plan.digest


def test_a_finished_run_says_so_and_does_nothing(toy):
    first, _ = quiet(toy.plan())
    before = os.stat("run/checkpoints/latest", follow_symlinks=False).st_ino
    again, said = quiet(toy.plan())
    assert again == attrs.evolve(first, already_finished=True)
    assert "this run is finished (24 steps)" in said
    assert os.stat("run/checkpoints/latest", follow_symlinks=False).st_ino == before


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{}",
        "5",
        "{",
        '{"digest": "x", "step": 24}',
        '{"digest": 1, "step": "many", "checkpoint": [], "exports": 3, "metrics": [], "best_score": {}}',
    ],
)
def test_a_damaged_result_tells_of_no_finished_run(toy, body):
    """The steps are all there: what is done again is the export, and the result."""
    plan = toy.plan(train={"max_steps": 2, "schedule_steps": 2})
    first, _ = quiet(plan)
    Path("run/result.json").write_text(body)
    again, said = quiet(plan)
    assert again == first
    assert "resuming at step 2" in said
    assert json.loads(Path("run/result.json").read_text())["step"] == 2


@pytest.mark.parametrize("content", ["[]", "{", "", '{"digest": "x"}'])
def test_a_damaged_plan_of_the_latest_checkpoint_is_named(toy, content):
    quiet(toy.plan(train={"max_steps": 2, "schedule_steps": 24}))
    Path("run/checkpoints/step-000002/plan.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"step-000002 is not a complete checkpoint: plan.json: .*`latest`"):
        quiet(toy.plan(train={"max_steps": 4, "schedule_steps": 24}))


def test_a_lost_export_is_written_again_without_training(toy):
    first, _ = quiet(toy.plan())
    content = (first.exports[0] / "model.safetensors").read_bytes()
    (first.exports[0] / "model.safetensors").unlink()
    (first.exports[0] / "config.json").unlink()
    first.exports[0].rmdir()
    again, said = quiet(toy.plan())
    assert "saved" not in said
    assert (again.exports[0] / "model.safetensors").read_bytes() == content
    (first.exports[0] / "model.safetensors").unlink()
    quiet(toy.plan())
    assert (again.exports[0] / "model.safetensors").read_bytes() == content, "half an export is none"


def test_a_longer_run_goes_on_where_it_ended(toy):
    """10 steps, then 16 of the same schedule, are 16 at once: bit for bit, log included."""
    schedule = {"schedule_steps": 20}
    quiet(toy.plan(train={"max_steps": 10, **schedule}))
    longer, said = quiet(toy.plan(train={"max_steps": 16, **schedule}))
    whole, _ = quiet(attrs.evolve(toy.plan(train={"max_steps": 16, **schedule}), output_dir="whole"))
    assert "resuming at step 10 from" in said
    for file in ("draft.safetensors", "optimizer.safetensors"):
        some, other = load_file(longer.checkpoint / file), load_file(whole.checkpoint / file)
        assert all(torch.equal(some[name], other[name]) for name in other)


@contextmanager
def files_at_most(limit):
    """Within, no file of this process grows beyond `limit` bytes: what a full disk does, as EFBIG for ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_a_checkpoint_is_told_and_the_run_goes_on_later(toy):
    plan = toy.plan(train={"max_steps": 4, "schedule_steps": 4}, checkpoint={"every": 2, "keep": 2})
    with (
        files_at_most(100_000),  # the draft's masters fit in, their moments do not
        pytest.raises(
            WriteError, match=r"the checkpoint of step 2 could not be written to run/checkpoints: .*File too"
        ),
    ):
        quiet(plan)
    assert list(Path("run/checkpoints").iterdir()) == [], "half a checkpoint takes space that is short"
    result, _ = quiet(plan)
    whole, _ = quiet(attrs.evolve(plan, output_dir="whole"))
    some, other = (load_file(done.checkpoint / "draft.safetensors") for done in (result, whole))
    assert all(torch.equal(some[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (0, "the lock of this run could not be written to run"),
        (1_000, "plan.json could not be written to run"),
        (10_000, "the tokenised rows of train.jsonl could not be written to run/prepared"),
    ],
)
def test_a_disk_that_is_full_before_training_is_told(toy, limit, said):
    plan = toy.plan(train={"max_steps": 1, "schedule_steps": 1})
    if limit == 10_000:
        rows = (toy.base / "train.jsonl").read_text()
        (toy.base / "train.jsonl").write_text(rows * 8)
        plan = toy.plan(train={"max_steps": 1, "schedule_steps": 1})
    with files_at_most(limit), pytest.raises(WriteError, match=f"{said}: File too large. Free space"):
        quiet(plan)
    assert [path.name for path in Path("run").iterdir() if path.name.startswith(".") and path.name != ".lock"] == []
    assert quiet(plan)[0].exit_code == 0


def test_a_disk_that_is_full_at_a_log_line_is_told(toy):
    plan = toy.plan(train={"learning_rate": 1e-3})
    folder = Path("run")
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "note": "x" * 50_000}) + "\n")
    with (
        files_at_most(50_500),
        pytest.raises(WriteError, match=r"metrics\.jsonl could not be written to run: File too"),
    ):
        quiet(plan)


def test_a_device_without_memory_is_told(toy, monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    monkeypatch.setitem(EXECUTORS, "colocated", exhausted)
    with pytest.raises(ValueError, match=r"out of memory while toy was trained .*: CUDA.* 20.00 MiB\.\nLower train"):
        quiet(toy.plan())


def test_a_changed_recipe_is_refused_and_named(toy):
    quiet(toy.plan(train={"max_steps": 2, "schedule_steps": 24}))
    changed = toy.plan(train={"max_steps": 4, "schedule_steps": 24, "learning_rate": 1e-2, "epochs": 5})
    with pytest.raises(CheckpointError) as error:
        quiet(changed)
    named = [line.strip() for line in str(error.value).splitlines() if "->" in line][1:]
    assert named == [
        "roles.trainer.ops.train.settings.epochs: 4 -> 5",
        "roles.trainer.ops.train.settings.learning_rate: 0.003 -> 0.01",
        "batch.epochs: 4 -> 5",
    ]


def test_without_a_checkpoint_a_changed_recipe_starts_again(toy):
    """A run that failed in its first step leaves nothing to protect."""
    with pytest.raises(NonFiniteError, match=r"row \d+ of train.jsonl"):
        quiet(toy.plan(train={"learning_rate": 1e30}))
    result, _ = quiet(toy.plan(train={"max_steps": 2, "schedule_steps": 2}))
    assert result.step == 2
    with open("run/metrics.jsonl") as file:
        assert [json.loads(line)["step"] for line in file] == [1, 2]


HOLD = """
import sys
from pathlib import Path
from specforge.runtime.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_runs_on_one_directory_are_refused(toy):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"run is in use by another run .process {holder.pid} on "):
            quiet(toy.plan())
    finally:
        holder.kill()
        holder.communicate()
    assert quiet(toy.plan(train={"max_steps": 1, "schedule_steps": 1}))[0].exit_code == 0, "the lock went with it"


def test_a_lock_is_free_after_its_block(tmp_path):
    folder = RunFolder(tmp_path / "x")
    for _ in range(2):
        with folder.locked():
            assert folder.path.is_dir()


def test_the_executor_follows_from_the_processes(toy):
    assert topology(toy.plan()) in EXECUTORS
