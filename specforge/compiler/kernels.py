"""In: the facts. Out: the parts of a training step that have a Triton kernel, and where that cannot run."""

from __future__ import annotations

from specforge.compiler.facts import Facts
from specforge.compiler.strategy import known

# the parts of Kernels in runtime/step/kernels.py, each a folder of kernels/specforge_kernels/
PARTS = ("ttt_attention", "soft_target_loss", "split_rotate", "rms_norm", "swiglu")
WIDEST_HEAD = 256
SWIGLU = ("silu", "swish")


def hot_parts(facts: Facts) -> tuple[str, ...]:
    """A draft with another activation has no SwiGLU."""
    act = known(facts).draft(facts, ()).hidden_act
    return tuple(part for part in PARTS if part != "swiglu" or act in SWIGLU)


def impossible(part: str, facts: Facts) -> str | None:
    """Why the Triton kernel of `part` cannot run, or None."""
    if facts.device.name == "cpu":
        return "the Triton kernels run on a GPU; on a CPU the PyTorch implementation is the only one"
    width = known(facts).draft(facts, ()).head_dim
    if part == "ttt_attention" and width > WIDEST_HEAD:
        return f"heads of {width} are wider than the {WIDEST_HEAD} of the Triton kernel"
    return None
