"""In: recordings. Out: trainings from them: equal to live ones, on several ranks, and what is refused at the start."""

import io
import json

import attrs
import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specforge.compiler import compile, load
from specforge.recording import RecordingError, read_manifest
from specforge.runtime.executor import colocated
from specforge.runtime.preflight import PreflightError
from specforge.runtime.recording.reader import read_recording
from specforge.runtime.run import run
from specforge.runtime.target import Placement, load_target
from specforge.runtime.train.loop import NonFiniteError
from specforge.runtime.train.metrics import TIMING

pytestmark = pytest.mark.cpu
ROWS, HELD_OUT = 'Prompts("train.jsonl", max_length=16)', 'Prompts("heldout.jsonl", max_length=16)'


@pytest.fixture
def recorded(site):
    site.record(site.recording("features", ROWS), shard_bytes=4000)
    site.record(site.recording("heldout", HELD_OUT))
    return site


def quiet(plan):
    return run(plan, Console(file=io.StringIO()))


def lines(name):
    with open(f"runs/{name}/metrics.jsonl") as file:
        return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in file]


def weights(result):
    return load_file(result.checkpoint / "draft.safetensors")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("more", ["", ", accumulation=2"])
def test_recorded_one_document_at_a_time_a_training_equals_the_live_one_bit_for_bit(recorded, more):
    """Both capture one document to a forward, so no document's company differs between the two orders."""
    live = quiet(recorded.training("live", ROWS, HELD_OUT, more=more))
    read = quiet(recorded.training("read", 'Recorded("features")', 'Recorded("heldout")', more=more))
    assert lines("live") == lines("read")
    assert any("evaluation" in line for line in lines("read"))
    assert equal(weights(live), weights(read))


def test_packs_filled_by_tokens_equal_too(recorded):
    filled = {"batch": "pack_tokens=32"}
    live = quiet(recorded.training("live", ROWS, HELD_OUT, **filled))
    read = quiet(recorded.training("read", 'Recorded("features")', 'Recorded("heldout")', **filled))
    assert lines("live") == lines("read")
    assert equal(weights(live), weights(read))


def test_the_target_is_not_run(recorded, monkeypatch):
    monkeypatch.setattr(colocated, "load_target", None)
    monkeypatch.setattr(colocated, "TransformersEngine", None)
    assert quiet(recorded.training("read", 'Recorded("features")', 'Recorded("heldout")')).exit_code == 0


def test_an_interrupted_training_goes_on_to_the_same_bits(recorded):
    whole = quiet(recorded.training("whole", 'Recorded("features")', 'Recorded("heldout")'))
    some = ", max_steps=5, schedule_steps=12"
    quiet(recorded.training("parts", 'Recorded("features")', 'Recorded("heldout")', more=some))
    parts = quiet(
        recorded.training(
            "parts", 'Recorded("features")', 'Recorded("heldout")', more=", max_steps=12, schedule_steps=12"
        )
    )
    assert whole.step == parts.step == 12
    assert equal(weights(whole), weights(parts))


def test_two_ranks_read_their_share(recorded):
    two = "Colocated(Transformers(batch_size=1), ranks=2)"
    live = quiet(recorded.training("live", ROWS, HELD_OUT, topology=two))
    read = quiet(recorded.training("read", 'Recorded("features")', 'Recorded("heldout")', topology=two))
    assert lines("live") == lines("read")
    assert equal(weights(live), weights(read))


def test_a_shard_of_another_size_or_none_is_told_before_anything_runs(recorded):
    plan = recorded.training("read", 'Recorded("features")', 'Recorded("heldout")')
    first, second = (recorded.base / "features" / f"shard-00000{i}.safetensors" for i in (0, 1))
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    with pytest.raises(PreflightError) as error:
        quiet(plan)
    assert "shard-000000.safetensors (recorded features) has" in str(error.value)
    assert "shard-000001.safetensors (recorded features) is not there" in str(error.value)


def test_another_recording_than_was_compiled_for_is_told(recorded):
    plan = recorded.training("read", 'Recorded("features")', 'Recorded("heldout")')
    manifest = recorded.base / "features" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(PreflightError, match=r"features/manifest\.json \(recorded features\) has changed"):
        quiet(plan)


def test_a_shard_that_holds_another_number_of_documents_is_refused(recorded):
    manifest = recorded.base / "heldout" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"documents": 5', '"documents": 6'))
    with pytest.raises(RecordingError, match="it has 5 documents, its manifest says 6"):
        read_recording(recorded.base / "heldout", "heldout")


def test_recorded_values_that_are_not_finite_are_skipped_counted_and_named(recorded):
    """Written by something else: what this version records has none."""
    path = recorded.base / "features" / "shard-000000.safetensors"
    with safe_open(path, framework="pt") as file:
        held = file.metadata()
    tensors = load_file(path)
    tensors["last"][0, 0] = float("nan")
    save_file(tensors, path, held)
    plan = recorded.training("read", 'Recorded("features")', 'Recorded("heldout")', more=", nonfinite_budget=2")
    text = io.StringIO()
    result = run(plan, Console(file=text, width=1000))
    assert "row 1 of features: last_TH has values that are not finite" in text.getvalue()
    assert result.step == 12
    strict = recorded.training("strict", 'Recorded("features")', 'Recorded("heldout")')
    with pytest.raises(NonFiniteError, match="row 1 of features"):
        quiet(attrs.evolve(strict, output_dir="strict"))


def of_saved_weights(site, plan_file):
    """The recipe in a file, with the target that is saved in the folder "target"."""
    text = plan_file.read_text()
    plan_file.write_text(text.replace('Target("toy", config="config.json", random_weights=True)', 'Target("target")'))
    return compile(load(plan_file))


def test_features_of_other_weights_are_told_before_anything_runs(recorded):
    site, seed = recorded, recorded.recording("seed", ROWS)
    model = load_target(seed.target, site.base, Placement("cpu", "float32")).model
    model.save_pretrained(site.base / "target")
    for name, rows in (("weights", ROWS), ("weights2", HELD_OUT)):
        site.recording(name, rows)
        site.record(of_saved_weights(site, site.base / f"{name}.py"))
    assert len(read_manifest(site.base / "weights").conditions.weights) == 64
    file = site.base / "read.py"
    site.training("read", 'Recorded("features")', 'Recorded("heldout")')
    file.write_text(file.read_text().replace('"features"', '"weights"').replace('"heldout"', '"weights2"'))
    plan = of_saved_weights(site, file)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    model.save_pretrained(site.base / "target")
    with pytest.raises(PreflightError, match="was recorded with other weights of target"):
        quiet(plan)
    with torch.no_grad():
        model.lm_head.weight.div_(2.0)
    model.save_pretrained(site.base / "target")
    assert quiet(plan).exit_code == 0
