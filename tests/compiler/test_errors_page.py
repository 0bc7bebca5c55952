"""In: docs/errors.md. Out: it is what `make docs` writes, and it has every rule."""

import runpy
from pathlib import Path

import pytest

from specforge.compiler.rules import rules

pytestmark = pytest.mark.null
DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    made = runpy.run_path(str(DOCS / "errors_page.py"))["page"]()
    assert (DOCS / "errors.md").read_text(encoding="utf-8") == made, "run `make docs`"


def test_the_page_has_every_rule_once():
    titles = [row.removeprefix("### ") for row in (DOCS / "errors.md").read_text().splitlines() if row[:4] == "### "]
    assert titles == list(rules())
