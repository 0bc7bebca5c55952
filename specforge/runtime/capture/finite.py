"""In: captured features. Out: which documents have NaN or infinity among them: they are not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from specforge.runtime.data.batch import Features


def faults(features: Sequence[Features]) -> list[str]:
    """For each document "" or what is wrong with it. The host waits once, for all of them."""
    tensors = [getattr(found, field.name) for found in features for field in attrs.fields(type(found))]
    if not tensors:
        return []
    fine = torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).reshape(len(features), -1)
    names = [field.name for field in attrs.fields(type(features[0]))]
    return [
        ", ".join(f"{name} has values that are not finite" for name, good in zip(names, row) if not good)
        for row in fine.tolist()
    ]
