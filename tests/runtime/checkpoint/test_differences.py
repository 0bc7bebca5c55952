"""In: two plans. Out: the fields that keep one from resuming a run of the other."""

import attrs
import pytest

from specforge.plan import Origin
from specforge.runtime.checkpoint.differences import compare_plans, recipe_changes, refuse_changes
from specforge.runtime.checkpoint.state import CheckpointError

pytestmark = pytest.mark.cpu


def paths(old, new):
    return [difference.path for difference in compare_plans(old, new)]


def test_the_same_plan_may_resume(toy):
    assert paths(toy.plan(), toy.plan()) == []


def test_what_only_decides_when_something_is_written_may_change(toy):
    new = toy.plan(train={"log_every": 5}, checkpoint={"every": 3, "keep": 9}, evaluate=4)
    assert paths(toy.plan(evaluate=2), new) == []
    role = new.roles[0]
    fewer = attrs.evolve(new, roles=(attrs.evolve(role, ops=tuple(op for op in role.ops if op.kind != "export")),))
    assert paths(toy.plan(evaluate=2), fewer) == []
    assert paths(toy.plan(), attrs.evolve(toy.plan(), base="/elsewhere", recipe="r.py", output_dir="other")) == []


def test_strictness_may_change(toy):
    old = toy.plan()
    (role,) = old.roles
    strict = attrs.evolve(role.ops[0], settings=attrs.evolve(role.ops[0].settings, strict=True))
    new = attrs.evolve(old, roles=(attrs.evolve(role, ops=(strict, *role.ops[1:])),))
    assert paths(old, new) == []


def test_other_gpus_may_go_on_with_a_run_and_another_number_of_ranks_may_not(toy):
    def on(*gpus):
        made = toy.plan(ranks=2)
        return attrs.evolve(made, roles=(attrs.evolve(made.roles[0], gpus=gpus),))

    assert paths(on(0, 1), on(4, 5)) == []
    assert [str(d) for d in compare_plans(toy.plan(ranks=2), toy.plan())] == [
        "roles.trainer.ranks: 2 -> 1",
        "batch.ranks: 2 -> 1",
        "batch.step_documents: 8 -> 4",
        "batch.step_tokens_at_most: 192 -> 96",
    ]


def test_changed_fields_are_named_with_both_values(toy):
    new = attrs.evolve(toy.plan(train={"learning_rate": 1e-2, "batch_documents": 3}), seed=8)
    found = compare_plans(toy.plan(), new)
    assert [str(d) for d in found] == [
        "seed: 7 -> 8",
        "roles.trainer.ops.train.settings.batch_documents: 2 -> 3",
        "roles.trainer.ops.train.settings.learning_rate: 0.003 -> 0.01",
        "batch.micro_documents: 2 -> 3",
        "batch.step_documents: 4 -> 6",
        "batch.step_tokens_at_most: 96 -> 144",
    ]
    with pytest.raises(CheckpointError, match="runs/toy holds a run of another recipe") as error:
        refuse_changes(toy.plan(), new, "runs/toy")
    assert all(str(d) in str(error.value) for d in found)
    assert "another output_dir" in str(error.value)


ORIGINS = {
    "train.learning_rate": ("0.003", "line 4"),
    "train.batch_size": ("2", "default"),
    "train.log_every": ("1", "default"),
    "train.precision": ("float32", "derived: the device cpu"),
    "train.features.source.path": ("train.jsonl", "line 3"),
    "output_dir": ("runs/{name}", "default"),
}


def with_origins(plan, **change):
    """The plan as compiled: origins by path with "." as "__", `change` in place of their values."""
    values = {
        path: (str(change.pop(path.replace(".", "__"), value)), source) for path, (value, source) in ORIGINS.items()
    }
    values |= {path.replace("__", "."): (value, "default") for path, value in change.items()}
    return attrs.evolve(plan, origins=tuple(Origin(path, *both) for path, both in values.items()))


def refusal(old, new, horizon=None):
    with pytest.raises(CheckpointError) as error:
        refuse_changes(old, new, "run", horizon)
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def test_a_refusal_names_each_change_once_by_its_path_in_the_recipe(toy):
    old = with_origins(toy.plan())
    new = with_origins(
        toy.plan(train={"learning_rate": 1e-2, "batch_documents": 3, "precision": "bfloat16", "log_every": 9}),
        train__learning_rate="0.01",
        train__batch_size="3",
        train__precision="bfloat16",
        train__log_every="9",
        output_dir="elsewhere",
    )
    assert refusal(old, new) == [
        "train.learning_rate: 0.003 -> 0.01",
        "train.batch_size: 2 -> 3",
        "Undo these changes to resume it, or give the changed recipe another output_dir",
    ]


def test_a_refusal_names_an_evaluation_that_is_new_and_a_file_with_other_content(toy):
    old = with_origins(toy.plan())
    with (toy.base / "train.jsonl").open("a") as file:
        file.write('{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}\n')
    item = Origin("evaluate[0].source.path", "heldout.jsonl", "line 5"), Origin("evaluate[0].every", "2", "line 5")
    new = with_origins(toy.plan(evaluate=2))
    new = attrs.evolve(new, origins=(*new.origins, *item))
    found = [(change.path, change.old, change.new) for change in recipe_changes(old, new)]
    assert found[0] == ("evaluate[0]", "absent", "given")
    assert [path for path, *_ in found[1:]] == ["content of train.jsonl"]


@pytest.mark.parametrize(
    ("schedule", "before", "after", "fix"),
    [
        # what was trained on ends at step 10: the steps beyond would be at rate 0
        ("cosine", (10, None), (15, None), "a cosine that ends at step 10: to go beyond, start a run with"),
        ("cosine", (10, 20), (15, 25), "with train.schedule_steps=20 the learning rates stay"),
        ("cosine", (10, 20), (15, None), "with train.schedule_steps=20 the learning rates stay"),
        ("constant", (10, None), (15, None), "with train.schedule_steps=10 the learning rates stay"),
        ("constant", (10, None), (5, 10), None),
    ],
)
def test_a_refusal_of_more_steps_names_the_schedule(toy, schedule, before, after, fix):
    old, new = (
        toy.plan(train={"schedule": schedule, "max_steps": steps, "schedule_steps": horizon})
        for steps, horizon in (before, after)
    )
    said = "\n".join(refusal(old, new, before[1] or before[0]))
    assert fix in said if fix else "schedule of this run" not in said


def test_what_a_refusal_of_more_steps_advises_resumes(toy):
    old = toy.plan(train={"schedule": "constant", "max_steps": 10})
    new = toy.plan(train={"schedule": "constant", "max_steps": 15, "schedule_steps": 10})
    assert compare_plans(old, new) == []
    # where the data ends before max_steps, the checkpoint alone knows the horizon
    shorter = toy.plan(train={"schedule": "constant", "max_steps": 15, "schedule_steps": 8})
    assert compare_plans(old, shorter) != []
    assert compare_plans(old, shorter, horizon=8) == []


def test_a_changed_data_file_is_named(toy):
    old = toy.plan()
    with (toy.base / "train.jsonl").open("a") as file:
        file.write('{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}\n')
    assert paths(old, toy.plan()) == ["files.train.jsonl.bytes", "files.train.jsonl.sha256"]


def test_max_steps_may_grow_while_the_schedule_stays(toy):
    old = toy.plan(train={"max_steps": 10, "schedule_steps": 20})
    fields = ["roles.trainer.ops.train.settings.max_steps", "batch.max_steps"]
    assert paths(old, toy.plan(train={"max_steps": 15, "schedule_steps": 20})) == []
    assert paths(old, toy.plan(train={"max_steps": 5, "schedule_steps": 20})) == fields
    longer = paths(old, toy.plan(train={"max_steps": 15, "schedule_steps": 25}))
    assert "roles.trainer.ops.train.settings.schedule_steps" in longer
    # without a given schedule_steps its horizon is max_steps: learning rates would change
    assert paths(toy.plan(train={"max_steps": 10}), toy.plan(train={"max_steps": 15})) == fields
