"""In: a plan. Out: dump and load keep it; an edited file or another schema is refused; it can be asked by name."""

import json

import attrs
import pytest

from specforge.compiler import CompileError, compile, load
from specforge.compiler.explain import text as explained
from specforge.compiler.show import text
from specforge.dsl.chat_family import FAMILIES
from specforge.plan import SCHEMA, PlanError, dump
from specforge.plan import load as load_plan

pytestmark = pytest.mark.null


def test_load_gives_the_dumped_plan_back(plan):
    again = load_plan(dump(plan))
    assert again == plan
    assert again.digest == plan.digest
    assert dump(again) == dump(plan)


@pytest.mark.parametrize(
    "train",
    [
        "Capture(rows, target, Policy(layers=[0, 3, 7], dtype='bfloat16')), Eagle3(fc_norm=True, norm_output=True)",
        "Capture(rows, target), Eagle3(reduction='rows'), max_steps=7, schedule_steps=9, precision='bfloat16'",
    ],
)
def test_every_option_survives(write, train):
    plan = compile(load(write(train, rest='evaluate=[Evaluate(Prompts("heldout.jsonl", max_length=8))]')))
    assert load_plan(dump(plan)) == plan


def test_a_source_is_strict_where_it_says_so(write):
    path = write()
    assert not compile(load(path)).op("prompts").settings.strict
    strict = compile(load(path, ("train.features.source.strict=True",)))
    assert strict.op("prompts").settings.strict
    assert "cut at 32 tokens, strict" in text(strict)


def test_a_source_of_chats_says_what_its_rows_are_and_what_is_supervised(write):
    path = write()
    path.write_text(path.read_text().replace("random_weights=True", "").replace("Prompts(", "Conversations("))
    assert not compile(load(path)).op("conversations").settings.last_turn_only
    last = compile(load(path, ("train.features.source.last_turn_only=True",)))
    assert last.op("conversations").settings.last_turn_only
    assert "cut at 32 tokens, last turn only" in text(last)
    rendered = compile(load(path, ("train.features.source.preformatted=True",)))
    assert rendered.op("conversations").settings.preformatted
    assert "all rows of rendered text, cut" in text(rendered)


def test_a_chat_family_travels_as_the_text_of_its_template(write):
    path = write()
    text_of = path.read_text().replace("random_weights=True", "").replace("Prompts(", "Conversations(")
    path.write_text(text_of.replace("max_length=32", "max_length=32, chat_family='qwen3'"))
    plan = compile(load(path))
    settings = plan.op("conversations").settings
    assert settings.chat_template == FAMILIES["qwen3"].template
    assert settings.chat_family == "qwen3"
    assert "cut at 32 tokens, written as qwen3" in text(plan)
    told = {row.split()[0]: row for row in explained(plan, "conversations").splitlines() if row.strip()}
    assert told["chat_template"].endswith("line 4")  # what gave it, and not the default of Conversations.chat_template


def test_marks_of_replies_travel_whole_and_are_shown_on_one_line(write):
    path = write()
    text_of = path.read_text().replace("random_weights=True", "").replace("Prompts(", "Conversations(")
    path.write_text(text_of.replace("max_length=32", r"max_length=32, reply_header='<a>\n', reply_end='\n\n'"))
    plan = compile(load(path))
    settings = plan.op("conversations").settings
    assert (settings.reply_header, settings.reply_end) == ("<a>\n", "\n\n")
    shown = text(plan)
    assert r"replies between '<a>\n' and '\n\n'" in shown
    assert [line.split()[1:] for line in shown.splitlines() if ".reply_" in line] == [
        [r"'<a>\n'", "line", "4"],
        [r"'\n\n'", "line", "4"],
    ]


def test_a_chat_template_travels_as_text(write, tmp_path):
    path = write()
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    text = path.read_text().replace("random_weights=True", "").replace("Prompts(", "Conversations(")
    path.write_text(text.replace("max_length=32", "max_length=32, chat_template='chat.jinja'"))
    plan = compile(load(path))
    assert plan.op("conversations").settings.chat_template == "{{ messages }}"
    assert [(f.path, f.use) for f in plan.files] == [
        ("rows.jsonl", "documents"),
        ("chat.jinja", "chat template"),
        ("tiny.json", "target config"),
    ]


def _edit(plan, change):
    body = json.loads(dump(plan))
    change(body)
    return json.dumps(body)


def test_an_edited_plan_is_refused(plan):
    with pytest.raises(PlanError, match=r"edited after it was compiled .* use --set, and compile again"):
        load_plan(_edit(plan, lambda body: body.update(seed=43)))


def test_where_values_came_from_is_no_part_of_the_digest(plan):
    moved = attrs.evolve(plan, base="/elsewhere", recipe="other.py", origins=())
    assert moved.digest == plan.digest
    assert load_plan(_edit(plan, lambda body: body.update(base="/elsewhere"))).base == "/elsewhere"


def test_another_schema_is_refused(plan):
    with pytest.raises(PlanError, match=rf"schema {SCHEMA + 1}, this specforge reads schema {SCHEMA}; compile"):
        load_plan(_edit(plan, lambda body: body.update(schema=SCHEMA + 1)))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(extra=1),
        lambda body: body.pop("seed"),
        lambda body: body["roles"][0]["ops"][0]["settings"].pop("path"),
        lambda body: body["roles"][0]["ops"][0]["settings"].update(settings="Nothing"),
    ],
)
def test_a_plan_with_other_fields_is_refused(plan, change):
    with pytest.raises(PlanError, match=r"does not have the fields of schema .* compile the recipe again"):
        load_plan(_edit(plan, change))


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", "recipe = Recipe()", '{"digest": "x"}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(PlanError, match=r"not a plan .*specforge compile RECIPE --out FILE"):
        load_plan(text)


def test_json_that_is_no_plan_says_what_a_plan_is():
    with pytest.raises(PlanError, match="it is JSON, and not an object with a digest and a schema"):
        load_plan("[]")


def test_a_plan_is_asked_by_name(plan):
    assert [op.kind for op in plan.ops()] == [
        "prompts",
        "capture",
        "train",
        "prompts",
        "capture",
        "evaluate",
        "checkpoint",
        "export",
        "export",
    ]
    assert [op.name for op in plan.ops("export")] == ["export", "export_2"]
    assert plan.op("train") is plan.role("trainer").ops[2]
    with pytest.raises(KeyError, match=r"no operation 'trian'; there are prompts, capture, train"):
        plan.op("trian")
    with pytest.raises(KeyError, match=r"no role 'server'; there are trainer"):
        plan.role("server")


def test_every_input_comes_from_an_output(plan):
    outputs = {f"{op.name}.{port.name}": port.feature for op in plan.ops() for port in op.outputs}
    inputs = [port for op in plan.ops() for port in op.inputs]
    assert inputs
    assert all(outputs[port.source] == port.feature for port in inputs)


def test_a_plan_says_what_it_assumes_of_the_device(write):
    h200 = compile(load(write(rest='topology=Colocated(device="H200")')))
    assert h200.device.memory_bytes == 140 * 2**30
    assert (h200.roles[0].target_dtype, h200.op("train").settings.precision) == ("bfloat16", "bfloat16")
    cpu = compile(load(write()))
    assert (cpu.roles[0].target_dtype, cpu.op("train").settings.precision) == ("float32", "float32")


def test_what_does_not_fit_is_a_warning(write):
    train = "Capture(rows, target), Eagle3(), batch_size=10_000_000"
    plan = compile(load(write(train, rest='topology=Colocated(device="RTX-4090"), outputs=[Export("hf")]')))
    assert [w for w in plan.warnings if "RTX-4090 has 24 GiB: lower batch_size or max_length" in w]
    assert not compile(load(write(rest='outputs=[Export("hf")]'))).warnings


MIX = "Capture(Mix([rows, Prompts('heldout.jsonl', max_length=8)], weights=[1, 0.5]), target), Eagle3()"


def test_a_mix_is_one_operation_with_its_parts_weights_and_the_seed(write):
    plan = compile(load(write(MIX)))
    settings = plan.op("mix").settings
    assert [(part.kind, part.path, part.max_length) for part in settings.parts] == [
        ("prompts", "rows.jsonl", 32),
        ("prompts", "heldout.jsonl", 8),
    ]
    assert settings.weights == (1.0, 0.5)
    assert settings.seed == plan.seed == 42
    assert settings.max_length == 32
    assert load_plan(dump(plan)) == plan
    assert {f.path for f in plan.files} >= {"rows.jsonl", "heldout.jsonl"}
    assert "mix: 1 x rows.jsonl + 0.5 x heldout.jsonl" in text(plan)
    told = explained(plan, "mix")
    assert "parts[1].max_length" in told
    assert told.count("sha256") == 2


def test_the_weight_of_each_source_of_a_mix_is_one_where_none_is_given(write):
    assert compile(load(write(MIX.replace(", weights=[1, 0.5]", "")))).op("mix").settings.weights == (1.0, 1.0)


def codes(path, *overrides):
    with pytest.raises(CompileError) as caught:
        compile(load(path, overrides))
    return [problem.code for problem in caught.value.problems]


def test_the_sources_of_a_mix_are_checked_and_overridden_as_any_other(write):
    length = "train.features.source.sources[1].max_length"
    assert compile(load(write(MIX), (f"{length}=16",))).op("mix").settings.parts[1].max_length == 16
    assert codes(write(MIX), f"{length}=999999") == ["length-beyond-context"]
    held_out = "evaluate=[Evaluate(Prompts('heldout.jsonl', max_length=8))]"
    assert codes(write(MIX, rest=held_out)) == ["not-held-out"]
    assert codes(write(MIX.replace("Prompts(", "Conversations("))) == ["tokenizer-missing"]
