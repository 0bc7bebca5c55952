"""In: `DraftSettings`, where a plan's paths begin. Out: the draft as a run starts it: from a file, or from its seed."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specforge.runtime.data.vocab_map import check
from specforge.runtime.draft.eagle3 import Eagle3Draft, init_draft
from specforge.settings import DraftSettings


def first_draft(settings: DraftSettings, seed: int, base: Path) -> Eagle3Draft:
    """The draft before its first step, in float32, its embedding still to be set.

    With `settings.weights` weights and vocabulary map are the file's; else weights are drawn, and there is no map yet.
    Raises ValueError where the file is not of this draft.
    """
    draft = init_draft(settings, seed)
    if settings.weights is None:
        return draft
    place = base / settings.weights
    try:
        found = load_file(place)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"Draft(weights={settings.weights!r}): {place} cannot be read: {error}") from None
    wanted = {p.name for p in settings.parameters if p.trainable} | {"d2t", "t2d"}
    own = draft.state_dict()
    wrong = [name for name in sorted(wanted) if name not in found or found[name].shape != own[name].shape]
    if wrong:
        raise ValueError(
            f"Draft(weights={settings.weights!r}) is of another draft: {', '.join(wrong)} missing or of another shape; "
            "compile the recipe again, which says what differs"
        )
    with torch.no_grad():
        for name in wanted:
            own[name].copy_(found[name])
    check(draft.d2t.numpy(), draft.t2d.numpy(), settings.draft_vocab_size, settings.vocab_size)
    return draft
