"""In: a draft's file. Out: a run starts from its weights and map; what is of another draft is refused."""

import io
import shutil

import attrs
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from specforge.runtime.draft.warm_start import first_draft
from specforge.runtime.run import run

pytestmark = pytest.mark.cpu


def started(plan, folder, **changes):
    """The draft file of a finished run of `plan`, and what it said."""
    said = io.StringIO()
    ops = [
        attrs.evolve(op, settings=attrs.evolve(op.settings, **changes)) if op.kind == "train" else op
        for op in plan.roles[0].ops
    ]
    role = attrs.evolve(plan.roles[0], ops=tuple(ops))
    run(attrs.evolve(plan, roles=(role,), output_dir=str(folder)), Console(file=said, width=200))
    return load_file(folder / "checkpoints" / "latest" / "draft.safetensors"), said.getvalue()


@pytest.fixture
def first(toy, tmp_path, monkeypatch):
    """A plan, its run's draft, and the file that another run starts from."""
    monkeypatch.chdir(tmp_path)
    plan = toy.plan()
    trained, _ = started(plan, tmp_path / "first", max_steps=2)
    save_file(trained, toy.base / "warm.safetensors")
    return plan, trained


def test_a_run_starts_where_the_file_stands_and_keeps_its_map(first, tmp_path):
    plan, trained = first
    draft = attrs.evolve(plan.op("train").settings.draft, weights="warm.safetensors")
    found, said = started(plan, tmp_path / "second", max_steps=1, draft=draft, learning_rate=1e-12)
    assert "draft weights and vocabulary map: warm.safetensors" in said
    assert torch.equal(found["d2t"], trained["d2t"])
    assert torch.equal(found["t2d"], trained["t2d"])
    for name, tensor in trained.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)
    cold, _ = started(plan, tmp_path / "cold", max_steps=1, learning_rate=1e-12)
    assert not torch.allclose(cold["fc.weight"], trained["fc.weight"], rtol=1e-3)


def test_a_run_that_goes_on_reads_its_checkpoint_and_not_the_file(first, tmp_path):
    plan, _ = first
    draft = attrs.evolve(plan.op("train").settings.draft, weights="warm.safetensors")
    folder = tmp_path / "run"
    plan = attrs.evolve(plan, roles=(_saving(plan.roles[0]),))
    whole, _ = started(plan, folder, draft=draft)
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    (folder / "checkpoints" / "latest").unlink()
    shutil.rmtree(checkpoints[-1])
    (folder / "result.json").unlink()
    resumed, said = started(plan, folder, draft=draft)
    assert "resuming at step" in said
    assert "draft weights" not in said
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def _saving(role):
    """The role with a checkpoint after every step."""
    every = [
        attrs.evolve(op, settings=attrs.evolve(op.settings, every=1, keep=9)) if op.kind == "checkpoint" else op
        for op in role.ops
    ]
    return attrs.evolve(role, ops=tuple(every))


def test_a_file_of_another_draft_is_refused(first, toy):
    plan, trained = first
    settings = attrs.evolve(plan.op("train").settings.draft, weights="warm.safetensors")
    save_file({**trained, "fc.weight": torch.zeros(3)}, toy.base / "warm.safetensors")
    with pytest.raises(ValueError, match=r"of another draft: fc\.weight missing or of another shape"):
        first_draft(settings, 0, toy.base)
    (toy.base / "warm.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"warm\.safetensors cannot be read"):
        first_draft(settings, 0, toy.base)
