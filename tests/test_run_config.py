"""In: docs/run_config_fields.md. Out: every row is at home in a node that exists, derived, or dropped with a reason."""

import re
from pathlib import Path

import attrs
import pytest

from specforge import dsl

pytestmark = pytest.mark.null
TABLE = Path(__file__).parents[1] / "docs" / "run_config_fields.md"
ROWS = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
FIELDS_OF_THE_REFERENCE = 171  # distinct ones, those of a later version included


def test_the_table_has_every_field_once():
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names)) == FIELDS_OF_THE_REFERENCE


@pytest.mark.parametrize(("name", "kind", "where"), ROWS, ids=[name for name, _, _ in ROWS])
def test_a_field_has_a_home_or_a_reason(name, kind, where):
    assert kind in ("node", "derived", "dropped")
    if kind != "node":
        assert len(where.split()) >= 2, "say what it follows from, or why it is not there"
        return
    node, field = where.strip("`").split(".")
    assert node in dsl.__all__
    assert field in {a.name for a in attrs.fields(getattr(dsl, node))}
