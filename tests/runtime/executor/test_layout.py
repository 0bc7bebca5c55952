"""In: plans of processes apart. Out: their bounds as the plan says, and where features go."""

import attrs
import pytest

from specforge.runtime.control.limits import Limits
from specforge.runtime.executor.layout import Layout, layout, store_folder

pytestmark = pytest.mark.null


def with_store(plan, **changes):
    roles = [
        attrs.evolve(
            role,
            ops=tuple(
                attrs.evolve(op, settings=attrs.evolve(op.settings, **changes)) if op.kind in ("put", "get") else op
                for op in role.ops
            ),
        )
        for role in plan.roles
    ]
    return attrs.evolve(plan, roles=tuple(roles))


def test_bounds_are_the_plans(toy):
    plan = toy.disaggregated(toy.plan(), servers=3)
    assert layout(plan) == Layout(3, 1, "prompts", Limits(0, 0, 300.0, 3), 900.0, None)
    changes = {"high_documents": 9, "low_documents": 4, "pool_bytes": 700, "retain": "features", "path": "shm"}
    assert layout(with_store(plan, **changes)) == Layout(3, 1, "features", Limits(9, 4, 300.0, 3, 700), 900.0, "shm")


def test_features_go_into_the_run_folder_or_a_folder_of_the_run_in_the_shared_one(toy, tmp_path):
    plan = toy.disaggregated(toy.plan())
    assert store_folder(layout(plan), plan, tmp_path / "a") == tmp_path / "a" / "features"
    shared = layout(with_store(plan, path="shm"))
    folders = (tmp_path / "a", tmp_path / "x/../a", tmp_path / "b")
    one, again, other = (store_folder(shared, plan, folder) for folder in folders)
    assert one == again != other
    assert one.parent == other.parent == toy.base / "shm"
    assert one.name.startswith("toy-")
