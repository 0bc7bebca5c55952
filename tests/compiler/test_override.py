"""In: a recipe and "path=value" overrides. Out: checked as if written there, and shown as the value's origin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge.compiler import CompileError, compile, load
from specforge.compiler.override import _value
from specforge.dsl.node import written

pytestmark = pytest.mark.null
SHARED = (
    "from specforge.dsl import *\n"
    'target = Target("tiny", config="tiny.json", random_weights=True)\n'
    'rows = Prompts("rows.jsonl", max_length=32)\n'
    'other = Prompts("rows.jsonl", max_length=32)\n'
    'recipe = Recipe(name="x", train=Train(Capture(rows, target), Eagle3()), evaluate=[Evaluate(rows)])\n'
)


def origin(plan, path: str) -> tuple[str, str]:
    return next((o.value, o.source) for o in plan.origins if o.path == path)


def problems(path, *overrides: str) -> list[tuple[str, str, str]]:
    with pytest.raises(CompileError) as caught:
        compile(load(path, overrides))
    return [(p.code, p.what, p.fix) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("train.learning_rate=3e-4", "train.learning_rate", "0.0003"),
        ("train.learning_rate = 3e-4", "train.learning_rate", "0.0003"),
        ("train.schedule=constant", "train.schedule", "constant"),
        ("train.betas=[0.8, 0.9]", "train.betas", "(0.8, 0.9)"),
        ("train.strategy.fc_norm=true", "train.strategy.fc_norm", "True"),
        ("train.draft.num_heads=8", "train.draft.num_heads", "8"),
        ("topology.engine.dtype=bfloat16", "topology.engine.dtype", "bfloat16"),
        ("outputs[0].keep=5", "outputs[0].keep", "5"),
        ("evaluate[0].source.max_length=16", "evaluate[0].source.max_length", "16"),
        ("seed=0", "seed", "0"),
        ("output_dir=out/{name}", "output_dir", "out/{name}"),
    ],
)
def test_an_override_sets_a_field_at_any_depth_and_is_its_origin(write, override, path, value):
    rest = 'outputs=[Checkpoint()], evaluate=[Evaluate(Prompts("heldout.jsonl", max_length=8))]'
    plan = compile(load(write(rest=rest), (override,)))
    assert origin(plan, path) == (value, "override")
    assert [o.path for o in plan.origins if o.source == "override"] == [path]


def test_an_override_with_the_value_that_stands_there_is_an_override_all_the_same(write):
    plan = compile(load(write(), ("train.features.source.max_length=32",)))
    assert origin(plan, "train.features.source.max_length") == ("32", "override")


def test_the_last_of_two_overrides_of_a_field_holds(write):
    plan = compile(load(write(), ("train.epochs=2", "train.epochs=3", "train.batch_size=2")))
    assert (plan.batch.epochs, plan.batch.micro_documents) == (3, 2)


def test_none_takes_a_value_back_to_what_is_derived(write):
    path = write("Capture(rows, target), Eagle3(), precision='bfloat16'")
    assert compile(load(path)).op("train").settings.precision == "bfloat16"
    assert compile(load(path, ("train.precision=None",))).op("train").settings.precision == "float32"


def test_other_values_keep_their_lines_and_the_plan_is_as_if_it_were_written(write):
    path = write()
    plan = compile(load(path, ("train.epochs=4",)))
    assert origin(plan, "train.features.source.max_length") == ("32", "line 4")
    assert origin(plan, "train.accumulation") == ("1", "default")
    assert plan.digest == compile(load(write("Capture(rows, target), Eagle3(), epochs=4"))).digest


def test_a_node_used_in_two_places_changes_in_both_and_an_equal_one_does_not(write):
    path = write()
    path.write_text(SHARED)
    recipe = load(path, ("train.features.source.max_length=16",)).recipe
    assert recipe.evaluate[0].source.max_length == 16
    assert written(recipe.evaluate[0]).line == 5
    path.write_text(SHARED.replace("Evaluate(rows)", "Evaluate(other)"))
    recipe = load(path, ("train.features.source.max_length=16",)).recipe
    assert (recipe.train.features.source.max_length, recipe.evaluate[0].source.max_length) == (16, 32)


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("train.learningrate=1", "did you mean train.learning_rate?"),
        ("tran.epochs=1", "did you mean train.epochs?"),
        ("learning_rate=1", "did you mean train.learning_rate?"),
        ("format=hf", "did you mean outputs[0].format?"),
        ("train.steps=1", "did you mean train.max_steps or train.schedule_steps?"),
        ("train.draft.heads=1", "did you mean train.draft.num_heads or train.draft.num_kv_heads?"),
        ("train.stps=1", "did you mean train.max_steps or train.schedule_steps?"),
        ("zzzzz=1", "the nearest are "),
        ("outputs[4].keep=1", "did you mean outputs[0].keep?"),
    ],
)
def test_an_unknown_path_names_the_nearest_ones(write, override, fix):
    path = write(rest="outputs=[Export('hf')]" if "keep" not in override else "outputs=[Checkpoint()]")
    (code, what, found) = problems(path, override)[0]
    assert code == "override-path"
    assert what.startswith(f"--set {override.partition('=')[0]} names no field")
    assert found.startswith(fix)


def test_an_override_is_checked_like_the_recipe(write):
    path = write()
    assert problems(path, "train.batch_size=0") == [
        (
            "whole-number",
            "--set train.batch_size=0: Train.batch_size is 0, and it takes a whole number of at least 1",
            "set batch_size to a whole number of at least 1",
        )
    ]
    assert [p[0] for p in problems(path, "train.draft.vocab_size=1000")] == ["draft-vocabulary"]
    assert [p[0] for p in problems(path, "train.features.source.path=absent.jsonl")] == ["file-not-found"]
    assert [p[0] for p in problems(path, "train.draft=5")] == ["node-kind"]


def test_a_problem_between_nodes_names_the_override_of_its_own_node_alone(write):
    """Three sources, two of them overridden: each problem has its own --set, and the third its line and none."""
    path = write(rest='evaluate=[Evaluate(Prompts("heldout.jsonl")), Evaluate(Prompts("gone.jsonl", max_length=8))]')
    with pytest.raises(CompileError) as caught:
        compile(load(path, ("train.features.source.path=absent.jsonl", "evaluate[0].source.path=other.jsonl")))
    found = [(p.line, p.what.partition(": ")[0]) for p in caught.value.problems if p.code == "file-not-found"]
    assert found == [
        (0, "--set evaluate[0].source.path=other.jsonl"),
        (0, "--set train.features.source.path=absent.jsonl"),
        (5, f"Prompts.path is 'gone.jsonl', and there is no file {path.parent}/gone.jsonl"),
    ]


def test_a_config_that_is_refused_names_its_override(write, tmp_path):
    (tmp_path / "other.json").write_text("[]")
    (found,) = problems(write(), "train.features.target.config=other.json")
    assert found[1].startswith("--set train.features.target.config=other.json: Target 'tiny': ")


def test_all_mistakes_of_recipe_and_overrides_are_told_at_once(write):
    path = write("Capture(rows, target), Eagle3(ttt_length=0)")
    found = problems(path, "train.batch_size=0", "nothing=1", "train.epochs")
    assert sorted(p[0] for p in found) == ["override-form", "override-path", "whole-number", "whole-number"]


def test_an_override_below_a_refused_value_says_nothing_more(write):
    path = write("Capture(rows, target), Eagle3(), draft=5")
    assert [p[0] for p in problems(path, "train.draft.vocab_size=64")] == ["node-kind"]


def test_an_override_does_not_repeat_a_problem_of_the_node_it_changes(write):
    path = write("Capture(rows, target), Eagle3(), max_steps=9, schedule_steps=5")
    assert [p[0] for p in problems(path, "train.epochs=2", "train.strategy.fc_norm=True")] == ["horizon-too-short"]


def test_an_override_without_a_field_or_a_value_says_which(write):
    assert [what for _, what, _ in problems(write(), "=3")] == ["--set =3 names no field"]
    assert [what for _, what, _ in problems(write(), "train.epochs")] == ["--set train.epochs has no value"]


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_literal_is_read_as_python_reads_it(value):
    assert _value(repr(value)) == value
    assert type(_value(repr(value))) is type(value)


@pytest.mark.parametrize("text", ["constant", "a/b.jsonl", "Qwen/Qwen3-8B", "runs/{name}", "2024-01-01x"])
def test_what_is_no_literal_is_text(text):
    assert _value(f" {text} ") == text
