"""In: toy recipes that record. Out: whole folders: stopped and gone on with, refused, with rows left out."""

import json
import shutil

import attrs
import pytest
import torch

from specforge.recording import MANIFEST, RecordingError, read_manifest
from specforge.runtime.executor.capture_feed import Capturer
from specforge.runtime.recording.reader import Reader, read_recording
from specforge.runtime.run_folder import RunFolder, RunFolderError
from specforge.runtime.target import Placement, load_target
from specforge.runtime.train.interrupt import Interrupt

pytestmark = pytest.mark.cpu
ROWS = 'Prompts("train.jsonl", max_length=16)'
real = shutil.disk_usage
SMALL = 4000  # several shards of the toy's rows


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def test_a_recording_is_what_the_target_says(site):
    result, _ = site.record(site.recording("features", ROWS), shard_bytes=SMALL)
    assert (result.exit_code, result.documents, result.missing) == (0, 12, ())
    manifest = read_manifest(site.base / "features")
    assert len(manifest.shards) > 2
    assert (manifest.documents, manifest.tokens) == (result.documents, result.tokens)
    made, _ = read_recording(site.base / "features", "features")
    sent = [json.loads(line) for line in (site.base / "train.jsonl").read_text().splitlines()]
    assert [d.tokens.tolist() for d in made.documents] == [row["input_ids"][:16] for row in sent]
    assert [d.loss_mask.tolist() for d in made.documents] == [list(map(bool, r["loss_mask"][:16])) for r in sent]
    assert manifest.longest == 16
    assert made.report.supervised == sum(d.supervised for d in made.documents) == manifest.supervised
    plan = site.recording("features", ROWS)
    model = load_target(plan.target, site.base, Placement("cpu", "float32")).model
    found = Reader().capture(made, [7, 0, 3]).features
    for i in (0, 3, 7):
        ids = torch.tensor(made.documents[i].tokens.astype("int64"))[None]
        with torch.no_grad():
            out = model(ids, output_hidden_states=True)
        aux = torch.cat([out.hidden_states[layer + 1][0] for layer in (1, 2, 3)], 1)
        torch.testing.assert_close(found[i].aux_TC, aux)
        torch.testing.assert_close(found[i].last_TH, out.hidden_states[-1][0])


def test_a_recording_that_was_stopped_goes_on_to_the_same_bytes(site, monkeypatch):
    site.record(site.recording("whole", ROWS), shard_bytes=SMALL)
    plan, captured = site.recording("parts", ROWS), []
    original = Capturer.capture

    def counted(self, prepared, indices):
        captured.extend(indices)
        if len(captured) == 4:
            stopping[0].requested = True
        return original(self, prepared, indices)

    stopping = []
    monkeypatch.setattr(Interrupt, "__enter__", lambda self: stopping.append(self) or self)
    monkeypatch.setattr(Capturer, "capture", counted)
    first, said = site.record(plan, shard_bytes=SMALL)
    assert first.exit_code == 130
    assert "run it again to go on" in said
    assert not (site.base / "parts" / MANIFEST).exists()
    second, said = site.record(plan, shard_bytes=SMALL)
    assert second.exit_code == 0
    assert "going on after" in said
    assert captured == list(range(12)), "no document is captured twice"
    assert content(site.base / "parts") == content(site.base / "whole")
    third, said = site.record(plan, shard_bytes=SMALL)
    assert "recorded already" in said
    assert (third.documents, len(captured)) == (12, 12)


def test_a_folder_of_other_settings_is_refused_with_what_differs(site):
    site.record(site.recording("features", ROWS))
    before = content(site.base / "features")
    other = site.recording(
        "other",
        'Prompts("heldout.jsonl", max_length=16)',
        path="features",
        policy='Policy(layers=[0, 1, 2], dtype="bfloat16")',
    )
    with pytest.raises(RecordingError) as error:
        site.record(other)
    text = str(error.value)
    assert "holds features of other settings" in text
    assert "layers: [1, 2, 3] -> [0, 1, 2]" in text
    assert "dtype: float32 -> bfloat16" in text
    assert "source: " in text
    assert "target" not in text.splitlines()[1:]
    assert content(site.base / "features") == before


def test_shards_without_a_manifest_are_compared_too(site):
    site.record(site.recording("features", ROWS))
    (site.base / "features" / MANIFEST).unlink()
    with pytest.raises(RecordingError, match=r"batch_documents: 1 -> 2"):
        site.record(site.recording("features", ROWS, topology="Colocated(Transformers(batch_size=2))"))


def test_a_disk_that_is_too_small_is_told_before_the_target_is_loaded(site, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage if path == site.base / "features" else real(path))
    with pytest.raises(RecordingError, match=r"0\.0 GiB free, and the features of 12 documents take 0\.0 GiB"):
        site.record(site.recording("features", ROWS))
    assert not list((site.base / "features").glob("shard*"))


def test_two_recordings_into_one_folder_are_kept_apart(site):
    with RunFolder(site.base / "features").locked(), pytest.raises(RunFolderError, match="in use by another run"):
        site.record(site.recording("features", ROWS))


def test_a_damaged_shard_is_named(site):
    site.record(site.recording("features", ROWS), shard_bytes=SMALL)
    (site.base / "features" / MANIFEST).unlink()
    path = site.base / "features" / "shard-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RecordingError, match=r"shard-000001\.safetensors is no whole shard"):
        site.record(site.recording("features", ROWS), shard_bytes=SMALL)


@pytest.fixture
def poisoned(site):
    """A target that is not finite after the last token of row 2, and the rows that have this token."""
    plan = site.recording("features", ROWS)
    rows = [json.loads(line)["input_ids"][:16] for line in (site.base / "train.jsonl").read_text().splitlines()]
    token = rows[1][-1]
    target = load_target(plan.target, site.base, Placement("cpu", "float32"))
    with torch.no_grad():
        target.embedding_VH[token] = float("inf")
    target.model.save_pretrained(site.base / "target")
    lost = [number for number, row in enumerate(rows, 1) if token in row]

    def budget(count):
        made = site.recording("features", ROWS, more=f", nonfinite_budget={count}")
        return attrs.evolve(made, target=attrs.evolve(made.target, folder="target", random_seed=None))

    return budget, lost


def test_rows_that_are_not_finite_are_left_out_counted_and_named(site, poisoned):
    budget, lost = poisoned
    result, said = site.record(budget(len(lost)), shard_bytes=SMALL)
    assert [one.row for one in result.missing] == lost
    assert result.documents == 12 - len(lost)
    assert f"row {lost[0]} of train.jsonl: aux_TC has values that are not finite" in said
    made, _ = read_recording(site.base / "features", "features")
    assert set(made.rows) == set(range(1, 13)) - set(lost)
    assert f"{len(lost):,} dropped" in made.report.text()


def test_over_the_budget_the_recording_stops_and_names_them(site, poisoned):
    budget, lost = poisoned
    with pytest.raises(RecordingError, match=rf"row {lost[0]} of train\.jsonl: .*nonfinite_budget={len(lost) - 1}\)"):
        site.record(budget(len(lost) - 1), shard_bytes=SMALL)
    assert not (site.base / "features" / MANIFEST).exists()
