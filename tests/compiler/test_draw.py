"""In: plans. Out: SVG and mermaid that name everything, are the same each time, overlap nowhere and escape texts."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import attrs
import pytest

from specforge.cli import main
from specforge.compiler import compile, load
from specforge.compiler.draw import UnknownPicture, drawn
from specforge.compiler.layout import layout
from specforge.compiler.picture import picture

pytestmark = pytest.mark.null
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))
SVG = "{http://www.w3.org/2000/svg}"
ODD = 'a "b" <c> & [d] #e; `f` \x07'


def rectangles(root: ET.Element, kind: str) -> list[tuple[float, ...]]:
    """Left, top, right, bottom of each rectangle of a class."""
    found = []
    for r in root.iter(f"{SVG}rect"):
        if r.get("class") == kind:
            x, y, width, height = (float(r.get(name)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def apart(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def within(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def in_two_roles(plan):
    """The plan with its first two operations in a role of their own, as a disaggregated one has them."""
    role = plan.roles[0]
    first = attrs.evolve(role, name="server", ops=role.ops[:2])
    return attrs.evolve(plan, roles=(first, attrs.evolve(role, ops=role.ops[2:])))


@pytest.fixture(params=[*RECIPES, "two roles"], ids=lambda p: getattr(p, "stem", p))
def any_plan(request, plan):
    return in_two_roles(plan) if request.param == "two roles" else compile(load(request.param))


def test_nothing_overlaps_and_everything_is_inside(any_plan):
    root = ET.fromstring(drawn(any_plan, "x.svg"))
    boxes, labels = rectangles(root, "operation"), rectangles(root, "label")
    roles = rectangles(root, "role")
    assert (len(boxes), len(roles)) == (len(any_plan.ops()), len(any_plan.roles))
    pairs = {(p.source.partition(".")[0], op.name) for op in any_plan.ops() for p in op.inputs}
    assert len(labels) == len(pairs)
    assert all(apart(a, b) for a, b in combinations(boxes + labels, 2))
    assert all(apart(a, b) for a, b in combinations(roles, 2))
    assert all(any(within(box, role) for role in roles) for box in boxes + labels)
    page = (0.0, 0.0, float(root.get("width")), float(root.get("height")))
    assert all(within(role, page) for role in roles)


def test_no_line_meets_a_box_or_label_but_at_its_edges(any_plan):
    """A line spans the gap between two rows only; what is in a row is a slot of its own."""
    slots = layout(picture(any_plan)).slots
    for slot in slots:
        for below in slot.after:
            assert below.row == slot.row + 1
            bottoms = [s.y + s.height for s in slots if s.row == slot.row]
            tops = [s.y for s in slots if s.row == below.row]
            assert max(bottoms) < min(tops)


def test_every_operation_feature_and_size_is_written(plan):
    words = {t.text for t in ET.fromstring(drawn(plan, "x.svg")).iter(f"{SVG}text")}
    assert {op.name for op in plan.ops()} <= words
    assert {"tokens 256 B", "aux 48.0 KiB", "last_hidden 16.0 KiB", "draft 257.0 KiB"} <= words
    assert "role trainer: 1 rank on cpu, target float32 in transformers" in words


def test_mermaid_has_a_box_per_operation_and_an_arrow_per_pair(plan):
    lines = drawn(plan, "x.mmd").splitlines()
    pairs = {(p.source.partition(".")[0], op.name) for op in plan.ops() for p in op.inputs}
    assert lines[0] == "flowchart TB"
    assert sum(" --> " in line for line in lines) == len(pairs)
    assert sum(bool(re.match(r'    op\d+\("', line)) for line in lines) == len(plan.ops())
    assert '  op1 -- "aux 48.0 KiB<br/>last_hidden 16.0 KiB" --> op2' in lines


@pytest.mark.parametrize("suffix", ["svg", "mmd"])
def test_the_same_plan_gives_the_same_text(write, suffix):
    path = write(rest='outputs=[Export("hf"), Checkpoint()]')
    assert drawn(compile(load(path)), f"a.{suffix}") == drawn(compile(load(path)), f"b.{suffix}")


def test_texts_are_escaped(plan):
    odd = attrs.evolve(plan, name=ODD, roles=(attrs.evolve(plan.roles[0], device=ODD),))
    words = [t.text for t in ET.fromstring(drawn(odd, "x.svg")).iter(f"{SVG}text")]
    assert any(ODD.replace("\x07", " ") in word for word in words)
    title = drawn(odd, "x.mmd").splitlines()[1]
    assert "a #quot;b#quot; #lt;c#gt; #amp; [d] #35;e; #96;f#96;  " in title
    assert title.count('"') == 2


@pytest.mark.parametrize("name", ["plan.png", "plan", ".svg"])
def test_another_suffix_is_refused(plan, name):
    with pytest.raises(UnknownPicture, match=r"name the file \.svg, or \.mmd"):
        drawn(plan, name)


def test_the_command_writes_the_file(write, tmp_path, capsys):
    path, file = write(), tmp_path / "plan.svg"
    assert main(["compile", str(path), "--graph", str(file)]) == 0
    assert file.read_text().startswith("<svg ")
    assert f"drawn to {file}" in capsys.readouterr().out
    assert main(["compile", str(path), "--graph", str(tmp_path / "plan.png")]) == 1
    assert not (tmp_path / "plan.png").exists()
