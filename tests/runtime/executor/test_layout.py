"""In: layouts with and without a shared folder. Out: where a run's features go, and that no two runs share it."""

import attrs
import pytest

from specforge.runtime.executor.layout import layout, store_folder

pytestmark = pytest.mark.null


def test_features_go_into_the_run_folder_or_a_folder_of_the_run_in_the_shared_one(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = toy.disaggregated(toy.plan())
    found = layout(plan)
    assert store_folder(found, plan, tmp_path / "a") == tmp_path / "a" / "features"
    shared = attrs.evolve(found, store="shm")
    folders = (tmp_path / "a", tmp_path / "x/../a", tmp_path / "b")
    one, again, other = (store_folder(shared, plan, folder) for folder in folders)
    assert one == again != other
    assert one.parent == other.parent == toy.base / "shm"
    assert one.name.startswith("toy-")
