"""In: toy plans and what is wrong with this machine. Out: every problem, in one message."""

import importlib.util
import shutil

import attrs
import pytest
import torch

from specforge.plan import Device, KernelChoice
from specforge.runtime.preflight import PreflightError, checkpoint_bytes, preflight
from specforge.runtime.run import run

pytestmark = pytest.mark.cpu


def problems(plan, folder):
    with pytest.raises(PreflightError) as error:
        preflight(plan, folder)
    first, *found = str(error.value).splitlines()
    assert first == "this plan cannot run here:"
    return found


def test_a_plan_that_fits_passes(toy):
    preflight(toy.plan(), toy.base / "run")


def test_changed_and_missing_files_are_named(toy):
    plan = toy.plan()
    with (toy.base / "train.jsonl").open("a") as file:
        file.write("{}\n")
    content = (toy.base / "config.json").read_bytes()
    (toy.base / "config.json").write_bytes(content.replace(b"1", b"2"))
    (toy.base / "heldout.jsonl").unlink()
    config, train, heldout = problems(plan, toy.base / "run")
    assert "config.json (target config) has changed since the plan was compiled: its sha256 is" in config
    assert "train.jsonl (source) has changed since the plan was compiled: it has" in train
    assert "heldout.jsonl (source) is not there" in heldout
    assert all("compile the recipe again" in problem for problem in (config, train, heldout))


def test_missing_weights_and_device_are_named_together(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = toy.plan()
    plan = attrs.evolve(
        plan,
        target=attrs.evolve(plan.target, name="nobody/nothing", random_seed=None),
        device=Device("H200", 140 * 2**30, 1.0, 1.0),
        roles=(attrs.evolve(plan.roles[0], device="H200"),),
    )
    weights, device = problems(plan, toy.base / "run")
    assert "hf download nobody/nothing" in weights
    assert 'device="H200"' in device
    assert "sees no GPU" in device


def test_a_config_of_the_hub_cache_is_found_again_by_its_branch(toy, monkeypatch, tmp_path):
    cache = tmp_path / "hub" / "models--toy--llama"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    plan = toy.plan()
    config = attrs.evolve(plan.files[0], path="hub:toy/llama/config.json")
    plan = attrs.evolve(
        plan, files=(config, *plan.files[1:]), target=attrs.evolve(plan.target, name="toy/llama", config=config.path)
    )
    (missing,) = problems(plan, toy.base / "run")
    assert missing.endswith("run: hf download toy/llama config.json")
    content = (toy.base / "config.json").read_bytes()
    for revision, text in (("aaa", b"{}"), ("bbb", content)):
        (cache / "snapshots" / revision).mkdir(parents=True)
        (cache / "snapshots" / revision / "config.json").write_bytes(text)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("bbb")
    preflight(plan, toy.base / "run")
    (cache / "refs" / "main").write_text("aaa")
    (changed,) = problems(plan, toy.base / "run")
    assert "aaa/config.json (target config) has changed since the plan was compiled" in changed


def test_a_smaller_gpu_than_declared_is_refused(toy, monkeypatch):
    class Properties:
        total_memory = 139 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Tiny")
    plan = toy.plan()
    role = attrs.evolve(plan.roles[0], device="H200")
    preflight(attrs.evolve(plan, roles=(role,), device=Device("H200", 140 * 2**30, 1.0, 1.0)), toy.base)
    (problem,) = problems(attrs.evolve(plan, roles=(role,), device=Device("B200", 180 * 2**30, 1.0, 1.0)), toy.base)
    assert "NVIDIA Tiny has 139 GiB" in problem


def test_a_gpu_that_is_not_there_is_named(toy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    plan = toy.plan(ranks=3)
    role = attrs.evolve(plan.roles[0], device="H200", gpus=(0, 1, 7))
    (problem,) = problems(attrs.evolve(plan, roles=(role,)), toy.base)
    assert problem.strip() == "the plan runs on gpus=[0, 1, 7], and this machine has GPUs 0 to 1; leave out [7]"


def test_too_little_disk_is_named(toy, monkeypatch):
    plan = toy.plan(checkpoint={"keep": 3})
    need = checkpoint_bytes(plan) * 5
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, need))
    preflight(plan, toy.base / "not" / "yet")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, need - 1))
    (problem,) = problems(plan, toy.base / "not" / "yet")
    assert "lower Checkpoint(keep=...)" in problem


def test_checkpoint_bytes_are_those_on_disk(toy, monkeypatch):
    monkeypatch.chdir(toy.base)
    plan = toy.plan(train={"max_steps": 1, "schedule_steps": 1})
    result = run(plan)
    on_disk = sum(path.stat().st_size for path in result.checkpoint.glob("*.safetensors"))
    assert checkpoint_bytes(plan) < on_disk < checkpoint_bytes(plan) + 8192, "headers and step counts aside"


def test_a_missing_serve_extra_is_named_where_it_is_needed(toy, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    preflight(toy.plan(), toy.base)
    (problem,) = problems(toy.disaggregated(toy.plan()), toy.base)
    assert problem.endswith("uvicorn is missing; pip install 'specforge[serve]'")


def test_triton_kernels_need_triton(toy, monkeypatch):
    plan = toy.plan()
    asked = attrs.evolve(plan, kernels=(KernelChoice("train.rms_norm", "triton", "asked for"),))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    (problem,) = problems(asked, toy.base)
    assert problem.endswith("pip install 'specforge[gpu]', or set Train(kernels=\"torch\")")
    preflight(attrs.evolve(plan, kernels=(KernelChoice("train.rms_norm", "torch", "asked for"),)), toy.base)


def test_a_run_is_not_started_by_torchrun(toy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    preflight(toy.plan(), toy.base)
    monkeypatch.setenv("WORLD_SIZE", "2")
    (problem,) = problems(toy.plan(), toy.base)
    assert "one of 2 processes" in problem
    assert problem.endswith("name ranks or gpus in the recipe's topology")


def test_what_compiles_and_does_not_run_yet_is_refused_with_what_does(toy):
    plan = toy.disaggregated(toy.plan())
    capture, trainer = plan.roles
    ops = [
        attrs.evolve(op, settings=attrs.evolve(op.settings, kind="mooncake")) if op.kind == "put" else op
        for op in capture.ops
    ]
    capture = attrs.evolve(capture, engine="sglang", ops=tuple(ops))
    engine, store = problems(attrs.evolve(plan, roles=(capture, trainer)), toy.base)
    assert engine.endswith("write servers=[Transformers()]")
    assert store.endswith("write store=SharedDir()")
    preflight(plan, toy.base)
