"""In: nodes built by a program. Out: frozen values, compared and hashed by value, checked, that know their line."""

import copy
import inspect

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge.compiler.rules import NODES
from specforge.dsl import (
    Capture,
    Checkpoint,
    Draft,
    Eagle3,
    Evaluate,
    Export,
    Policy,
    Prompts,
    Recipe,
    RecipeError,
    Target,
    Train,
)
from specforge.dsl.node import BAD, Collector, ReadBadValue, collecting, evolve, is_node, written
from specforge.dsl.recipe import children, walk

pytestmark = pytest.mark.null


def capture(**fields) -> Capture:
    return Capture(Prompts("rows.jsonl"), Target("lab/model"), **fields)


def test_a_node_is_frozen():
    draft = Draft(vocab_size=64)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        draft.vocab_size = 32


@pytest.mark.parametrize("kind", NODES)
def test_every_node_is_frozen_and_every_field_has_a_rule(kind):
    for field in attrs.fields(kind):
        assert field.metadata["rules"], f"{kind.__name__}.{field.name} is not checked"
        assert field.metadata["optional"] == (field.default is None), f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("kind", NODES)
def test_every_default_passes_its_own_rules(kind):
    for field in attrs.fields(kind):
        if field.default is not attrs.NOTHING and field.default is not None:
            assert [r.check(field.name, field.default) for r in field.metadata["rules"]] == [None]


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_nodes_are_equal_exactly_when_their_fields_are(a, b):
    assert (Draft(vocab_size=a) == Draft(vocab_size=b)) == (a == b)
    assert len({Draft(vocab_size=a), Draft(vocab_size=a), Draft(vocab_size=b)}) == (1 if a == b else 2)


def test_the_line_is_no_part_of_the_value():
    first = capture()
    second = capture()
    assert first == second
    assert hash(first) == hash(second)
    assert Draft() != Policy()


def test_sequences_become_tuples_so_that_a_recipe_is_hashable():
    outputs = [Checkpoint(), Export("hf")]
    recipe = Recipe("x", Train(capture(policy=Policy(layers=[1, 2, 3])), Eagle3()), outputs=outputs)
    outputs.append(Export("sglang"))
    assert recipe.outputs == (Checkpoint(), Export("hf"))
    assert recipe.train.features.policy.layers == (1, 2, 3)
    assert isinstance(hash(recipe), int)
    assert recipe == copy.deepcopy(recipe)


def test_a_node_knows_the_line_of_its_call():
    here = inspect.currentframe().f_lineno
    node = Draft(
        vocab_size=64,
    )
    assert written(node).line == here + 1
    assert written(node).file == __file__
    assert written(node).given == ("vocab_size",)


def test_each_of_two_nodes_on_one_line_is_found_by_its_column():
    one, two = Draft(), Draft()
    assert written(one).line == written(two).line
    assert written(one).column < written(two).column


@pytest.mark.parametrize(
    ("build", "code", "what", "fix"),
    [
        (lambda: Draft(vocab_size=0), "whole-number", "Draft.vocab_size is 0", "set vocab_size"),
        (lambda: Draft(vocab_size=True), "whole-number", "Draft.vocab_size is True", "set vocab_size"),
        (lambda: Draft(vocabsize=3), "unknown-field", "Draft has no field vocabsize", "did you mean vocab_size?"),
        (
            lambda: Draft(zzz=3),
            "unknown-field",
            "Draft has no field zzz",
            "there are config, head_dim, intermediate_size",
        ),
        (lambda: Export(), "missing-field", "Export needs format", "add format=..."),
        (lambda: Export("hf", format="hf"), "field-twice", "Export is given format twice", "keep one"),
        (lambda: Export("hf", "x"), "unknown-field", "Export takes at most 1 arguments, and 2", "keep these: format"),
        (lambda: Export("gguf"), "choice", "Export.format is 'gguf'", "write format='hf' or format='sglang'"),
        (lambda: Draft(num_heads=4, num_kv_heads=3), "heads-divide", "Draft.num_kv_heads is 3", "divides"),
        (lambda: Evaluate(Draft()), "node-kind", "Evaluate.source is Draft(...)", "a held-out source"),
        (lambda: Policy(layers=[]), "layer-ids", "Policy.layers is []", "like [1, 14, 26]"),
        (lambda: Policy(layers=[1, 1, 2]), "layer-ids", "Policy.layers is [1, 1, 2]", "like"),
        (lambda: Target("tiny", random_weights=True), "random-needs-config", "Target.random_weights", "config="),
    ],
)
def test_a_program_meets_the_first_broken_rule_as_an_exception(build, code, what, fix):
    with pytest.raises(RecipeError) as caught:
        build()
    assert caught.value.problem.code == code
    assert what in str(caught.value)
    assert fix in caught.value.problem.fix
    assert isinstance(caught.value, ValueError)


def test_evolve_keeps_the_line_the_given_fields_and_says_what_was_overridden():
    before = Draft(vocab_size=64)
    after = evolve(before, {"num_heads": 8}, overridden=("num_heads",))
    assert after == Draft(vocab_size=64, num_heads=8)
    assert (written(after).line, written(after).given) == (written(before).line, ("vocab_size",))
    assert written(after).overridden == ("num_heads",)
    assert before == Draft(vocab_size=64)


def test_evolve_checks_what_it_changes():
    with pytest.raises(RecipeError, match=r"Draft.num_heads is 0"):
        evolve(Draft(), {"num_heads": 0})
    with pytest.raises(RecipeError, match="must divide num_heads=6"):
        evolve(Draft(num_heads=4, num_kv_heads=4), {"num_heads": 6})


def test_while_a_recipe_is_loaded_problems_are_collected_and_the_value_stands_in():
    with collecting(Collector(__file__, lambda written: None)) as collector:
        draft = Draft(vocab_size=0, num_heads=-1)
        capture = Capture(5, Target("lab/model"))
    assert [p.what.split(",")[0] for p in collector.problems] == [
        "Draft.vocab_size is 0",
        "Draft.num_heads is -1",
        "Capture.source is 5",
    ]
    assert draft.vocab_size is BAD
    assert not is_node(capture.source)
    with pytest.raises(RecipeError):
        Draft(vocab_size=0)


def test_an_evolved_node_does_not_repeat_what_was_wrong_before():
    with collecting(Collector(__file__, lambda written: None)) as collector:
        draft = Draft(num_heads=4, num_kv_heads=3)
        evolve(draft, {"vocab_size": 5})
    assert [p.code for p in collector.problems] == ["heads-divide"]


@pytest.mark.parametrize(
    "read",
    [
        lambda: BAD < 1,
        lambda: BAD + 1,
        lambda: 1 - BAD,
        lambda: 3 % BAD if BAD else None,
        lambda: list(BAD),
        lambda: len(BAD),
        lambda: int(BAD),
        lambda: BAD[0],
        lambda: BAD.name,
        lambda: {BAD: 1},
    ],
)
def test_reading_a_refused_value_is_noticed(read):
    with pytest.raises(ReadBadValue):
        read()


def test_walk_gives_every_node_with_its_path():
    target, prompts = Target("lab/model"), Prompts("rows.jsonl")
    recipe = Recipe(
        "x", Train(Capture(prompts, target), Eagle3()), evaluate=[Evaluate(Prompts("b.jsonl"))], outputs=[Export("hf")]
    )
    found = dict(walk(recipe))
    assert list(found) == [
        "",
        "train",
        "train.features",
        "train.features.source",
        "train.features.target",
        "train.strategy",
        "train.draft",
        "topology",
        "topology.engine",
        "evaluate[0]",
        "evaluate[0].source",
        "outputs[0]",
    ]
    assert found["train.features.target"] is target
    assert [path for path, _ in children(recipe)] == ["train", "topology", "evaluate[0]", "outputs[0]"]


def test_a_policy_of_eagle3_leaves_the_layers_to_the_target():
    assert Eagle3.policy(Target("lab/model")) == Policy(strategy="eagle3")
