"""In: recipes that record, and that train on what was recorded. Out: their plans, without a shard or torch."""

import shutil
from pathlib import Path

import pytest

from specforge.compiler import compile, compile_graph, load, verify
from specforge.compiler.build import build
from specforge.compiler.draw import drawn
from specforge.compiler.explain import text as explained
from specforge.compiler.passes import PIPELINE
from specforge.compiler.show import text
from specforge.plan import dump
from specforge.plan import load as load_plan
from specforge.settings import CaptureSettings, RecordedSettings, RecordSettings

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
HEAD = """
from specforge.dsl import *
target = Target("tiny-llama", config="tiny-llama.json", random_weights=True)
prompts = Prompts("tiny_prompts.jsonl", max_length=64)
"""
RECORD = 'recipe = Recipe(name="r", record=Record(Capture(prompts, target, {}), "features"){})'
TRAIN = (
    'recipe = Recipe(name="t", train=Train(Capture(Recorded("features"), target), Eagle3(ttt_length=4){}), '
    'evaluate=[Evaluate(Recorded("heldout"), every=5)], outputs=[Export("hf")]{})'
)


@pytest.fixture
def file(tmp_path):
    """Where a recipe is written, beside its target, rows and two recordings (manifests only)."""
    shutil.copy(REPOSITORY / "recipes/targets/tiny-llama.json", tmp_path)
    shutil.copy(REPOSITORY / "recipes/data/tiny_prompts.jsonl", tmp_path)
    manifest = (REPOSITORY / "tests/bad_recipes/recordings/tiny/manifest.json").read_text()
    for name, made in (("features", manifest), ("heldout", manifest.replace('"source": "', '"source": "0'))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(made)
    return tmp_path / "recipe.py"


def loaded(file, recipe):
    file.write_text(HEAD + recipe)
    return load(file)


def planned(file, recipe):
    return compile(loaded(file, recipe))


def test_a_recording_has_one_role_and_trains_nothing(file):
    plan = planned(file, RECORD.format("Eagle3.policy(target)", ""))
    assert [op.kind for op in plan.ops()] == ["prompts", "capture", "record"]
    assert plan.op("record").settings == RecordSettings("features", 0)
    assert plan.op("capture").settings == CaptureSettings((1, 3, 4), True, "float32", 8, packed=True)
    assert [p.source for p in plan.op("record").inputs] == [
        "prompts.tokens",
        "prompts.loss_mask",
        "capture.aux",
        "capture.last_hidden",
    ]
    assert [(p.kind, p.roles) for p in plan.processes] == [("recorder", ("recorder",))]
    assert (plan.batch.step_documents, plan.batch.step_tokens_at_most) == (8, 512)
    assert [part.name for part in plan.flops] == ["target prefill"]
    assert not plan.export_keys
    assert load_plan(dump(plan)) == plan


@pytest.mark.parametrize(
    ("policy", "layers", "names", "dtype"),
    [
        ("Policy(layers=[0, 7])", (0, 7), ["aux", "last_hidden"], "float32"),
        ('Policy(layers=[2], last_hidden=False, dtype="bfloat16")', (2,), ["aux"], "bfloat16"),
    ],
)
def test_a_policy_says_what_is_recorded(file, policy, layers, names, dtype):
    plan = planned(file, RECORD.format(policy, ""))
    settings = plan.op("capture").settings
    assert (settings.layers, settings.last_hidden, settings.dtype) == (layers, "last_hidden" in names, dtype)
    assert [port.name for port in plan.op("capture").outputs] == names


def test_training_on_recordings_runs_no_target(file):
    plan = planned(file, TRAIN.format("", ""))
    assert [op.kind for op in plan.ops()] == ["recorded", "train", "recorded", "evaluate", "export"]
    assert plan.op("recorded").settings == RecordedSettings(
        path="features",
        layers=(1, 3, 4),
        last_hidden=True,
        dtype="float32",
        computed="float32",
        documents=96,
        tokens=4132,
        max_length=64,
    )
    assert {p.source.partition(".")[0] for p in plan.op("train").inputs} == {"recorded"}
    parts = {part.name: part.bytes for part in plan.memory}
    assert not {"target weights", "prefill"} & parts.keys()
    assert parts["target head"] == 256 * 64 * 4
    assert "target prefill" not in [part.name for part in plan.flops]
    assert [f.path for f in plan.files if f.use == "recorded features"] == [
        "features/manifest.json",
        "heldout/manifest.json",
    ]


def test_recorded_features_need_no_servers_whatever_the_topology(file):
    """The plan of a disaggregated recipe: a trainer, which is what a colocated recipe has."""
    servers = "servers=[Transformers(gpus=[0])], store=SharedDir(max_gib=4)"
    recipe = TRAIN.replace("target)", 'target, Policy(dtype="float32"))', 1)
    apart = f', topology=Disaggregated({servers}, trainers=Trainers(gpus=[2, 3]), device="H200")'
    made = planned(file, recipe.format("", apart))
    beside = planned(file, recipe.format("", ', topology=Colocated(gpus=[2, 3], device="H200")'))
    assert (made.roles, made.processes, made.batch, made.memory) == (
        beside.roles,
        beside.processes,
        beside.batch,
        beside.memory,
    )
    assert [process.kind for process in made.processes] == ["trainer"]
    assert made.control is None
    assert "the features are recorded: the servers and the store of Disaggregated are not started" in made.warnings
    sources = {o.path: (o.value, o.source) for o in made.origins}
    assert sources["topology.servers[0].dtype"] == ("not used", "derived: features are recorded")
    assert sources["topology.high_watermark"] == ("not used", "derived: features are recorded")


def test_live_or_recorded_the_training_is_the_same(file):
    live = planned(
        file,
        TRAIN.replace('Recorded("features")', "prompts")
        .replace('[Evaluate(Recorded("heldout"), every=5)]', "[]")
        .format("", ""),
    )
    read = planned(file, TRAIN.format("", ""))
    assert live.op("train").settings == read.op("train").settings
    assert live.batch == read.batch


@pytest.mark.parametrize(
    "recipe",
    [
        RECORD.format("Eagle3.policy(target)", ""),
        RECORD.format("Policy(layers=[2], last_hidden=False)", ', topology=Colocated(device="H200")'),
        TRAIN.format("", ""),
        TRAIN.format(", pack_tokens=256", ", topology=Colocated(ranks=2)"),
    ],
)
def test_their_plans_are_shown_explained_and_drawn_and_passes_are_pure(file, recipe):
    made = loaded(file, recipe)
    plan = compile(made)
    assert all(len(line) <= 120 for line in text(plan).splitlines())
    for op in plan.ops():
        assert op.name in explained(plan, op.name)
        assert op.name in drawn(plan, "plan.svg")
    _, facts = compile_graph(made)
    graph = build(made.recipe)
    for step in PIPELINE:
        after = step(graph, facts)
        assert step(after, facts) == after
        verify(after, step.__name__)
        graph = after


def test_explain_says_where_a_recorded_value_came_from(file):
    plan = planned(file, RECORD.format("Policy(layers=[1, 2])", ""))
    said = explained(plan, "capture")
    assert "[1, 2]" in said
    assert "line 5" in next(line for line in said.splitlines() if line.strip().startswith("layers"))
    assert "line 5" in next(line for line in explained(plan, "record").splitlines() if line.strip().startswith("path"))


def test_more_recorded_rows_do_not_make_a_bigger_plan(file):
    small = len(dump(planned(file, TRAIN.format("", ""))))
    manifest = file.parent / "features" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"documents": 96', '"documents": 960000'))
    assert len(dump(planned(file, TRAIN.format("", "")))) < small + 20
