"""In: the tables of docs/benchmarks. Out: each is what the results beside it give."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs/benchmarks"))
import tables


@pytest.mark.null
@pytest.mark.parametrize("readme", tables.readmes(), ids=lambda path: path.parent.name)
def test_a_table_is_made_of_its_results(readme):
    text = readme.read_text()

    assert text == tables.remade(readme), "make docs"


@pytest.mark.null
def test_a_table_says_by_how_much_a_bar_is_missed():
    row = {"name": "T 2048", "ms": 78.0, "other_run_ms": 79.0, "peak_gib": 5.0, "floor_ms": 50.0, "ratio": 1.56}
    (line,) = tables.gpu_step([row])[2:]
    assert line.endswith("| 65 ms: missed by 20.0%; 5.5 GiB: met, 5 |")
