"""In: small prepared sources with weights. Out: checks of which documents an epoch of their mix holds, and its file."""

from collections import Counter

import attrs
import pytest

from specforge.runtime.data.cache import Preparation, prepared
from specforge.runtime.data.prepared import read_prepared
from specforge.settings import SourceSettings

pytestmark = pytest.mark.cpu


@pytest.fixture
def sources(write_rows):
    """Two files of pre-tokenised rows: ten rows of 1x, with a bad one behind them, and four of 2x."""
    for name, count, first in (("a.jsonl", 10, 100), ("b.jsonl", 4, 200)):
        rows = [{"input_ids": [first + i, 1, 2], "loss_mask": [0, 1, 1]} for i in range(count)]
        write_rows([*rows, {"input_ids": []}] if name == "a.jsonl" else rows, name)
    return tuple(SourceSettings("prompts", p, 100, None, None, False, False, False) for p in ("a.jsonl", "b.jsonl"))


@pytest.fixture
def mixed(sources, tmp_path):
    """`mixed(weights, seed)`: the two sources mixed, kept in the folder cache."""

    def run(*weights, seed=7, parts=sources):
        plain = SourceSettings("mix", "a.jsonl + b.jsonl", 100, None, None, False, False, False)
        source = attrs.evolve(plain, parts=parts, weights=weights, seed=seed)
        return prepared(Preparation(source, tmp_path, None, 300), tmp_path / "cache")

    return run


def first_tokens(made):
    return [int(d.tokens[0]) for d in made.documents]


A, B = list(range(100, 110)), list(range(200, 204))


def test_weights_of_one_are_the_sources_one_after_the_other(mixed):
    made = mixed(1.0, 1.0)
    assert first_tokens(made) == A + B
    assert [d.index for d in made.documents] == list(range(14))
    assert made.describe(0) == "row 1 of a.jsonl"
    assert made.describe(13) == "row 4 of b.jsonl"


def test_a_weight_says_how_often_an_epoch_reads_a_source(mixed):
    made = mixed(0.5, 2.5)
    counts = Counter(first_tokens(made))
    assert sum(counts[a] for a in A) == 5
    assert {counts[a] for a in A} == {0, 1}
    assert sorted(counts[b] for b in B) == [2, 2, 3, 3]
    for document in made.documents:
        file, row = divmod(int(document.tokens[0]) - 100, 100)
        assert made.describe(document.index) == f"row {row + 1} of {'ab'[file]}.jsonl"


def test_the_choice_is_of_the_seed_alone(mixed):
    assert first_tokens(mixed(0.5, 1.0)) == first_tokens(mixed(0.5, 1.0))
    assert len({tuple(first_tokens(mixed(0.5, 1.0, seed=seed))) for seed in range(5)}) > 1
    assert first_tokens(mixed(0.5, 1.0))[:5] == first_tokens(mixed(0.5, 0.25))[:5]


def test_no_source_is_left_out(mixed):
    assert len(first_tokens(mixed(0.001, 0.001))) == 2


def test_the_report_tells_of_each_source_and_of_the_mix(mixed):
    assert mixed(1.0, 0.5).report.text().splitlines() == [
        "a.jsonl: 11 rows, 10 kept, 1 dropped",
        "  30 tokens, 10 supervised (33.3%)",
        "  dropped 1: empty row (row 11): input_ids is empty",
        "b.jsonl: 4 rows, 4 kept, 0 dropped",
        "  12 tokens, 4 supervised (33.3%)",
        "a.jsonl + b.jsonl: 12 documents an epoch",
        "  36 tokens, 12 supervised (33.3%)",
    ]


def test_its_file_gives_the_mix_back(mixed):
    made = mixed(0.5, 2.0)
    again = read_prepared(made.file)
    assert first_tokens(again) == first_tokens(made)
    assert (again.rows, again.parts, again.report, again.file) == (made.rows, made.parts, made.report, made.file)
    assert again.describe(9) == made.describe(9)


def test_every_input_of_a_mix_is_in_its_key(sources, mixed, tmp_path):
    files = {mixed(1.0, 1.0).file, mixed(1.0, 0.5).file, mixed(1.0, 1.0, seed=8).file}
    files.add(mixed(1.0, 1.0, parts=sources[::-1]).file)
    files.add(mixed(1.0, 1.0, parts=(attrs.evolve(sources[0], max_length=50), sources[1])).file)
    before = mixed(1.0, 1.0).file
    (tmp_path / "b.jsonl").write_text((tmp_path / "b.jsonl").read_text().replace("203", "204"))
    files.add(mixed(1.0, 1.0).file)
    assert before in files
    assert len(files) == 6


def test_a_strict_source_of_a_mix_stops_at_its_fault(sources, mixed):
    with pytest.raises(ValueError, match=r"a\.jsonl: row 11: empty row"):
        mixed(1.0, 1.0, parts=(attrs.evolve(sources[0], strict=True), sources[1]))
