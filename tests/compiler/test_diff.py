"""In: a saved plan and a recipe. Out: dotted paths with both values; exit status 0, 1 or 3; old plans can be read."""

import json

import pytest

from specforge.cli import main
from specforge.compiler import compile, load
from specforge.compiler.diff import compare, text
from specforge.plan import SCHEMA, PlanError, dump

pytestmark = pytest.mark.null


@pytest.fixture
def saved(write, tmp_path):
    """A recipe's file and the file of its plan."""
    path = write()
    assert main(["compile", str(path), "--out", str(tmp_path / "plan.json")]) == 0
    return path, tmp_path / "plan.json"


def test_the_same_recipe_does_not_differ(saved, capsys):
    path, file = saved
    capsys.readouterr()
    assert main(["compile", str(path), "--diff", str(file)]) == 0
    assert capsys.readouterr().out == f"no difference from {file}\n"


def test_a_changed_value_is_named_with_both_values(saved, capsys):
    path, file = saved
    capsys.readouterr()
    assert main(["compile", str(path), "--diff", str(file), "--set", "train.learning_rate=0.25"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        f"1 field differs from {file}",
        "  roles.trainer.ops.train.settings.learning_rate",
        "    - 0.0001",
        "    + 0.25",
    ]


def test_out_and_diff_of_one_file_compare_with_what_it_held(saved):
    path, file = saved
    words = ["compile", str(path), "--diff", str(file), "--out", str(file), "--set", "seed=7"]
    assert main(words) == 3
    assert main(words) == 0


def test_a_plan_of_an_older_form_is_compared_field_by_field(plan):
    old = json.loads(dump(plan)) | {"digest": "of another day", "schema": 0, "colour": "blue"}
    old["target"]["geometry"].pop("head_dim")
    found = {d.path: (d.old, d.new) for d in compare(json.dumps(old), plan)}
    assert found == {"schema": (0, SCHEMA), "colour": ("blue", "absent"), "target.geometry.head_dim": ("absent", 16)}


def test_where_a_value_came_from_is_no_difference(plan):
    old = json.loads(dump(plan)) | {"origins": [], "base": "/elsewhere", "recipe": "other.py"}
    assert compare(json.dumps(old), plan) == []


def test_another_order_of_operations_differs(plan):
    old = json.loads(dump(plan))
    old["roles"][0]["ops"].reverse()
    assert [d.path for d in compare(json.dumps(old), plan)] == ["roles.trainer.ops"]


def test_an_operation_more_is_named(write):
    path = write()
    before = dump(compile(load(path)))
    after = compile(load(write(rest='outputs=[Export("hf")]')))
    found = {d.path: d for d in compare(before, after)}
    assert set(found["roles.trainer.ops"].new) - set(found["roles.trainer.ops"].old) == {"export"}
    assert not [path for path in found if path.startswith("roles.trainer.ops.export")]
    assert '"export"' in text(list(found.values()), "plan.json")


def test_another_topology_is_a_page_and_not_a_book(write):
    before = dump(compile(load(write())))
    apart = compile(load(write(rest="topology=Disaggregated(servers=[Transformers()], store=SharedDir())")))
    found = compare(before, apart)
    assert {"roles", "processes", "roles.trainer.ops"} <= {d.path for d in found}
    assert len(found) < 40


@pytest.mark.parametrize("content", ["[]", "{}", "not json", '{"schema": 1}'])
def test_a_file_that_is_no_plan_is_refused(plan, content):
    with pytest.raises(PlanError, match="not a plan"):
        compare(content, plan)


@pytest.mark.parametrize("content", [b"[]", b"not json", b"\xff\xfe\x00"])
def test_a_file_that_is_no_plan_is_named(write, tmp_path, capsys, content):
    (tmp_path / "other.json").write_bytes(content)
    assert main(["compile", str(write()), "--diff", str(tmp_path / "other.json")]) == 1
    error = capsys.readouterr().err
    assert f"--diff {tmp_path / 'other.json'}" in error
    assert "write" in error
    assert "compile RECIPE --out" in error


def test_a_file_that_is_not_there_is_an_error(write, tmp_path, capsys):
    assert main(["compile", str(write()), "--diff", str(tmp_path / "none.json")]) == 1
    assert "No such file or directory; write a plan with: compile RECIPE --out" in capsys.readouterr().err
