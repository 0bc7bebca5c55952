"""In: the kernels of a plan. Out: what the step, its draft's norms and its MLP run."""

import attrs
import pytest
import toy_eagle3 as toy

from specforge.compiler.kernels import PARTS
from specforge.plan import KernelChoice
from specforge.runtime.draft.layers import MLP, RMSNorm
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.step.kernels import Kernels, kernels_of


@attrs.frozen
class Chosen:
    """All that is read of a plan here."""

    kernels: tuple[KernelChoice, ...]


@pytest.mark.cpu
def test_the_step_runs_what_the_plan_says():
    assert tuple(attrs.fields_dict(Kernels)) == PARTS
    choices = [KernelChoice(f"train.{part}", "triton" if part == "rms_norm" else "torch", "") for part in PARTS]
    kernels = kernels_of(Chosen(tuple(choices)))
    assert kernels == attrs.evolve(Kernels.all("torch"), rms_norm="triton")
    draft = toy.draft(toy.Options())
    plain = toy.step(draft, toy.Options())
    Eagle3Step(draft, plain.head_VH, plain.settings, kernels=kernels)
    used = {type(m): m.implementation for m in draft.modules() if isinstance(m, RMSNorm | MLP)}
    assert used == {RMSNorm: "triton", MLP: "torch"}


@pytest.mark.cpu
@pytest.mark.parametrize("part", ["ttt_attention", "soft_target_loss", "split_rotate"])
def test_a_part_that_cannot_run_as_asked_says_so(part):
    """The compiler refuses it before; here a step that was made by hand."""
    options = toy.Options()
    pack, features = toy.made(toy.random_masks((5,), 1.0, 1))
    plain = toy.step(toy.draft(options), options)
    wanted = Kernels(**{part: "cuda"})
    step = Eagle3Step(plain.draft, plain.head_VH, plain.settings, kernels=wanted)
    with pytest.raises(ValueError, match="implementation='cuda' is unknown"):
        step(toy.batched(pack, features), pack.supervised)
