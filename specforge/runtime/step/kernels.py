"""In: a plan. Out: `Kernels`: which implementation each hot part of the step runs."""

from __future__ import annotations

import attrs

from specforge.plan import Plan


@attrs.frozen
class Kernels:
    """ "triton" or "torch" for each op of specforge_kernels; "auto": Triton on a GPU in bfloat16, else PyTorch."""

    ttt_attention: str = "auto"
    soft_target_loss: str = "auto"
    split_rotate: str = "auto"
    rms_norm: str = "auto"
    swiglu: str = "auto"

    @classmethod
    def all(cls, implementation: str) -> Kernels:
        return cls(**dict.fromkeys(attrs.fields_dict(cls), implementation))


def kernels_of(plan: Plan) -> Kernels:
    """What the plan says of its training; a part that it does not name is not in the step."""
    return Kernels(**{choice.op.rpartition(".")[2]: choice.implementation for choice in plan.kernels})
