"""In: operations' names. Out: their settings with origins, edges with sizes, kernels and their share of the costs."""

import attrs
import pytest

from specforge.cli import main
from specforge.compiler import compile, load
from specforge.compiler.explain import UnknownOperation, flops_of, memory_of, text

pytestmark = pytest.mark.null


def rows(shown: str, title: str) -> list[list[str]]:
    """The rows below a title, as words."""
    lines = shown.splitlines()
    if title not in lines:
        return []
    body = lines[lines.index(title) + 1 :]
    return [line.split() for line in (body[: body.index("")] if "" in body else body)]


def test_every_setting_of_every_operation_is_there(plan):
    for op in plan.ops():
        named = {row[0].partition(".")[0] for row in rows(text(plan, op.name), "settings")}
        assert named == {a.name for a in attrs.fields(type(op.settings))}, op.name


def test_settings_say_where_they_came_from(plan):
    said = {row[0]: " ".join(row[1:]) for row in rows(text(plan, "train"), "settings")}
    assert said["learning_rate"] == "0.003 line 15"
    assert said["batch_documents"] == "4 line 16"
    assert said["draft.draft_vocab_size"] == "128 line 14"
    assert said["draft.num_heads"] == "4 derived: the target's"
    assert said["eagle3.ttt_length"] == "4 line 13"
    assert said["accumulation"] == "1 default"
    assert said["draft.vocab_size"] == "256"


def test_an_override_is_named(write):
    path = write(rest='outputs=[Export("hf"), Checkpoint(), Export("sglang")], evaluate=[Evaluate(rows2, every=3)]')
    path.write_text(path.read_text().replace("recipe =", 'rows2 = Prompts("heldout.jsonl", max_length=32)\nrecipe ='))
    shown = compile(load(path, ("outputs[1].keep=7", "outputs[2].format=sglang", "evaluate[0].every=9")))
    assert ["keep", "7", "override"] in rows(text(shown, "checkpoint"), "settings")
    assert ["format", "sglang", "override"] in rows(text(shown, "export_2"), "settings")
    assert ["format", "hf", "line", "6"] in rows(text(shown, "export"), "settings")
    assert ["every", "9", "override"] in rows(text(shown, "evaluate"), "settings")
    assert ["path", "heldout.jsonl", "line", "5"] in rows(text(shown, "prompts_2"), "settings")


def test_edges_have_shape_dtype_and_bytes(plan):
    shown = text(plan, "capture")
    assert rows(shown, "inputs")[0][:5] == ["prompts.tokens", "[T]", "int32", "4", "B/token,"]
    assert rows(shown, "outputs")[1][:4] == ["last_hidden", "[T,", "64]", "float32"]
    assert rows(shown, "comes after") == [["prompts"]]
    assert [row[0] for row in rows(shown, "comes before")] == ["train", "evaluate", "checkpoint", "export", "export_2"]


def test_costs_and_kernels_are_shared_out(plan):
    ops = (plan.op("capture"), plan.op("train"))
    assert sorted(attrs.astuple(p) for op in ops for p in memory_of(plan, op)) == sorted(
        map(attrs.astuple, plan.memory)
    )
    assert sorted(attrs.astuple(p) for op in ops for p in flops_of(plan, op)) == sorted(map(attrs.astuple, plan.flops))
    assert [p.name for p in memory_of(plan, plan.op("capture_2"))] == ["target weights"]
    assert not flops_of(plan, plan.op("capture_2"))
    assert not memory_of(plan, plan.op("export"))
    assert [row[0] for row in rows(text(plan, "train"), "kernels")] == [k.op for k in plan.kernels]
    assert not rows(text(plan, "capture"), "kernels")


def test_the_draft_has_its_parameters_and_a_source_its_file(plan):
    assert len(rows(text(plan, "train"), "state_dict")) == len(plan.op("train").settings.draft.parameters)
    assert rows(text(plan, "prompts"), "file")[0][0] == "data/tiny_prompts.jsonl"


def test_no_line_is_much_wider_than_a_terminal(plan):
    assert max(len(line) for op in plan.ops() for line in text(plan, op.name).splitlines()) <= 120


def test_a_misspelt_name(plan, write, capsys):
    with pytest.raises(UnknownOperation, match=r"no such operation; did you mean capture\?"):
        text(plan, "captur")
    assert main(["compile", str(write()), "--explain", "zzz"]) == 1
    assert "there are capture, prompts, train" in capsys.readouterr().err
