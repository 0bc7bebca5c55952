"""In: a `Pack` and what was captured of its documents. Out: the `Batch` of tensors a step reads.

Legend: T tokens of a document, R rows of a pack (documents laid end to end, nothing padded), C captured width,
H target hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from specforge.runtime.data.pack import Pack


@attrs.frozen(eq=False)
class Features:
    """What was captured of one document: `aux_TC` (layers concatenated) and `last_TH` (post-norm)."""

    aux_TC: torch.Tensor
    last_TH: torch.Tensor


@attrs.frozen(eq=False)
class Batch:
    """A pack with its captured features on the trainer's device; `features` are concatenated as the documents are."""

    pack: Pack
    tokens_R: torch.Tensor
    aux_RC: torch.Tensor
    last_RH: torch.Tensor


def batch(pack: Pack, features: Sequence[Features], device: torch.device) -> Batch:
    """Lay a pack's documents end to end on `device`. `features[i]` belongs to `pack.documents[i]`.

    A pack without documents, what a rank is left when packs run out, has tensors without rows or columns.
    """
    if not pack.documents:
        return Batch(pack, upload(np.zeros(0, np.int64), device), *torch.zeros(2, 0, 0, device=device))
    tokens_R = np.concatenate([d.tokens for d in pack.documents]).astype(np.int64)
    return Batch(
        pack=pack,
        tokens_R=upload(tokens_R, device),
        aux_RC=torch.cat([f.aux_TC.to(device, non_blocking=True) for f in features]),
        last_RH=torch.cat([f.last_TH.to(device, non_blocking=True) for f in features]),
    )


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A host array on `device`; to a GPU through pinned memory, so that the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
