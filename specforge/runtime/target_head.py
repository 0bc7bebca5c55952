"""In: a target. Out: `TargetHead`, the two tensors of it that a trainer needs: teacher and frozen embedding.

Legend: V vocabulary, H hidden size.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import torch

from specforge.runtime.target import Placement, TargetModel, load_target
from specforge.settings import Logits, TargetSettings


@attrs.frozen(eq=False)
class TargetHead:
    """The LM head's weight and the input embedding; one tensor where they are tied. `logits`: what follows the head."""

    head_VH: torch.Tensor
    embedding_VH: torch.Tensor
    logits: Logits


def target_head(target: TargetModel) -> TargetHead:
    """The head of a target that is here."""
    return TargetHead(target.head_VH, target.embedding_VH, target.settings.geometry.logits)


def load_target_head(settings: TargetSettings, base: Path, placement: Placement) -> TargetHead:
    """The head on `placement`; the rest of the target passes through this host's memory and is dropped.

    Raises what `load_target` raises.
    """
    target = load_target(settings, base, Placement("cpu", placement.dtype))
    head_VH = target.head_VH.detach().to(placement.device)
    tied = target.head_VH.data_ptr() == target.embedding_VH.data_ptr()
    embedding_VH = head_VH if tied else target.embedding_VH.detach().to(placement.device)
    return TargetHead(head_VH, embedding_VH, settings.geometry.logits)
