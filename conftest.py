"""In: collected tests. Out: those marked `gpu` are skipped on a machine without a CUDA GPU; all others run."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A skip, not a deselection: the closing line of a run says how many were not run, and why."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch  # only here: tests marked `null` run where there is no torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
