"""In: .ckpt files, of this version and others. Out: recordings, files of recordings, and what is none."""

import gzip
import io

import pytest
import torch

from specforge.cli import main
from specforge.recording import RecordingError, read_manifest
from specforge.runtime.recording.ckpt import GROUP, write_ckpt
from specforge.runtime.recording.reader import Reader, read_recording

pytestmark = pytest.mark.cpu
FILES = 'Ckpt("files", max_length=16)'


def document(length, seed, dtype=torch.float32):
    """As the public reference implementation writes it: hidden_state is the last one, whatever its name says."""
    chance = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(0, 96, (length,), generator=chance),
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "hidden_state": torch.randn(1, length, 32, generator=chance).to(dtype),
        "aux_hidden_state": torch.randn(1, length, 96, generator=chance).to(dtype),
    }


@pytest.fixture
def files(site):
    """Twelve documents; data_2 comes before data_10, and one file is compressed."""
    written = [document(4 + i % 9, i) for i in range(12)]
    folder = site.base / "files" / "rows_0-2000"
    folder.mkdir(parents=True)
    for i, content in enumerate(written):
        if i == 5:
            buffer = io.BytesIO()
            torch.save(content, buffer)
            (folder / "data_5.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue(), 6))
        else:
            torch.save(content, folder / f"data_{i}.ckpt")
    return written


def change(site, number, **tensors):
    path = site.base / "files" / "rows_0-2000" / f"data_{number}.ckpt"
    content = {**torch.load(path, weights_only=True), **tensors}
    torch.save({name: value for name, value in content.items() if value is not None}, path)


def test_files_become_a_recording_bit_for_bit_in_the_order_of_their_numbers(site, files):
    result, _ = site.record(site.recording("features", FILES), shard_bytes=4000)
    assert (result.exit_code, result.documents) == (0, 12)
    made, _ = read_recording(site.base / "features", "features")
    found = Reader().capture(made, list(range(12))).features
    for i, content in enumerate(files):
        assert torch.equal(torch.tensor(made.documents[i].tokens.astype("int64")), content["input_ids"])
        assert made.documents[i].loss_mask.all()
        assert torch.equal(found[i].aux_TC, content["aux_hidden_state"][0])
        assert torch.equal(found[i].last_TH, content["hidden_state"][0])
    conditions = read_manifest(site.base / "features").conditions
    assert (conditions.computed, conditions.batch_documents) == ("", 0), "nobody knows how they were captured"


def test_a_recording_becomes_files_and_they_the_same_recording(site, files, capsys):
    site.record(site.recording("features", FILES))
    assert main(["data", "ckpt", "features", "--out", "written"]) == 0
    assert "wrote 12 files into written" in capsys.readouterr().out
    folder = site.base / "written" / f"rows_0-{GROUP}"
    assert len(list(folder.iterdir())) == 12
    for i, content in enumerate(files):
        found = torch.load(folder / f"data_{i}.ckpt", weights_only=True)
        assert found.keys() == content.keys()
        assert all(torch.equal(found[name], content[name]) for name in found)
        assert all(found[name].dtype == content[name].dtype for name in found)


def test_training_reads_what_was_captured_elsewhere(site, files):
    site.record(site.recording("features", FILES))
    site.record(site.recording("heldout", 'Prompts("heldout.jsonl", max_length=16)'))
    assert main(["run", str(_train(site))]) == 0


def _train(site):
    site.training("read", 'Recorded("features")', 'Recorded("heldout")')
    return site.base / "read.py"


def test_a_policy_without_the_last_hidden_state_needs_none(site, files):
    change(site, 3, hidden_state=None)
    policy = "Policy(layers=[1, 2, 3], last_hidden=False)"
    assert site.record(site.recording("features", FILES, policy=policy))[0].documents == 12
    with pytest.raises(RecordingError, match="no last hidden state was recorded"):
        write_ckpt(site.base / "features", site.base / "out")


def test_files_with_values_that_are_not_finite_are_left_out_and_named(site, files):
    bad = files[4]["hidden_state"].clone()
    bad[0, 1, 2] = float("-inf")
    change(site, 4, hidden_state=bad)
    with pytest.raises(RecordingError, match=r"data_4\.ckpt: last_TH has values that are not finite.*budget=0\)"):
        site.record(site.recording("features", FILES))
    result, _ = site.record(site.recording("features", FILES, more=", nonfinite_budget=1"))
    assert (result.documents, [one.row for one in result.missing]) == (11, [5])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"aux_hidden_state": None}, r"data_7\.ckpt has hidden_state, input_ids, loss_mask, and needs"),
        (
            {"aux_hidden_state": torch.zeros(1, 11, 64)},
            r"aux_hidden_state is float32 \[1, 11, 64\].*gives \[1, 11, 96\]",
        ),
        ({"hidden_state": None}, r"hidden_state is missing, and this target"),
        ({"hidden_state": torch.zeros(1, 11, 32).bfloat16()}, r"in bfloat16, and float32.*Policy\(dtype='bfloat16'\)"),
        ({"loss_mask": torch.ones(9, dtype=torch.int64)}, r"input_ids has 11 tokens and loss_mask 9"),
        ({"loss_mask": torch.ones(11)}, r"loss_mask is float32 \[11\], and takes int64 \[tokens\]"),
        ({"input_ids": torch.full((11,), 96)}, r"token ids from 96 to 96, and the target has 96"),
        (
            {"input_ids": torch.zeros(17, dtype=torch.int64), "loss_mask": torch.ones(17, dtype=torch.int64)},
            r"at most max_length=16",
        ),
    ],
)
def test_a_file_of_other_content_is_named_with_what_it_has(site, files, tensors, message):
    change(site, 7, **tensors)
    with pytest.raises(RecordingError, match=message) as error:
        site.record(site.recording("features", FILES))
    assert "data_7.ckpt" in str(error.value)


def test_code_in_a_file_is_not_run(site, files):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"input_ids": Evil()}, site.base / "files" / "rows_0-2000" / "data_7.ckpt")
    with pytest.raises(RecordingError, match=r"data_7\.ckpt cannot be read as tensors"):
        site.record(site.recording("features", FILES))


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04 cut"])
@pytest.mark.parametrize("name", ["data_7.ckpt", "data_5.ckpt.gz"])
def test_what_is_no_file_of_tensors_is_named(site, files, name, content):
    (site.base / "files" / "rows_0-2000" / name).write_bytes(content)
    with pytest.raises(RecordingError, match=f"{name} cannot be read as tensors"):
        site.record(site.recording("features", FILES))


def test_files_are_not_written_over(site, files):
    site.record(site.recording("features", FILES))
    with pytest.raises(RecordingError, match="is not empty; name a new folder"):
        write_ckpt(site.base / "features", site.base / "files")
