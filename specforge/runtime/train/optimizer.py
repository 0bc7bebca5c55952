"""In: gradients of the draft's compute weights. Out: float32 masters moved by AdamW, compute weights copied from them.

Nothing here waits for the device: norms and finite flags stay tensors, and a non-finite update is skipped by the
fused AdamW kernel itself (its `found_inf` input, which also takes the step counts back).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import nn

from specforge.settings import TrainSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NORM_EPS = 1e-6


@attrs.frozen(eq=False)
class Update:
    """What one optimizer step did, as scalars on the device: the norm before clipping, and whether it was applied."""

    grad_norm: torch.Tensor
    finite: torch.Tensor


class Optimizer:
    """AdamW over the float32 masters of `draft`'s trainable parameters.

    `draft` arrives with float32 weights, which become the masters; it leaves in `settings.precision`. In float32 the
    masters are the weights themselves. Frozen parameters never enter.
    """

    def __init__(self, draft: nn.Module, settings: TrainSettings) -> None:
        trainable = {name: p for name, p in draft.named_parameters() if p.requires_grad}
        assert trainable, "the draft has no trainable parameter"
        assert all(p.dtype == torch.float32 for p in trainable.values()), "masters start from float32 weights"
        dtype = DTYPES[settings.precision]
        copied = dtype != torch.float32
        self.masters = {n: p.detach().clone() if copied else p for n, p in trainable.items()}
        draft.to(dtype)
        self.weights = {n: p for n, p in draft.named_parameters() if p.requires_grad}
        assert self.weights.keys() == self.masters.keys()
        self._copied = copied
        self._max_norm = settings.max_grad_norm
        self._adamw = torch.optim.AdamW(
            list(self.masters.values()),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add the gradients of a micro-step to the masters', in float32, and drop them from the compute weights."""
        if not self._copied:
            return
        grads = self._gradients(self.weights)
        masters = list(self.masters.values())
        if masters[0].grad is None:
            for master, grad in zip(masters, grads, strict=True):
                master.grad = grad.to(torch.float32)
        else:
            torch._foreach_add_(self._gradients(self.masters), [g.to(torch.float32) for g in grads])
        for weight in self.weights.values():
            weight.grad = None

    def gradients(self) -> list[torch.Tensor]:
        """What the micro-steps of this rank accumulated, float32, one per master."""
        return self._gradients(self.masters)

    @torch.no_grad()
    def step(self, learning_rate: float, finite: torch.Tensor) -> Update:
        """Clip by the global norm and move the masters, unless `finite` (bool scalar) or the norm says not to.

        The clip is min(1, max_grad_norm / (norm + 1e-6)), the norm over all masters' gradients in float32.
        """
        grads = self._gradients(self.masters)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        applied = finite & torch.isfinite(norm)
        torch._foreach_mul_(grads, (self._max_norm / (norm + NORM_EPS)).clamp(max=1.0))
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        # the two attributes that torch's own gradient scaler sets on a fused optimizer
        self._adamw.grad_scale = None
        self._adamw.found_inf = (~applied).to(torch.float32)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        if self._copied:
            torch._foreach_copy_(list(self.weights.values()), list(self.masters.values()))
        return Update(grad_norm=norm, finite=applied)

    def state(self) -> dict[str, torch.Tensor]:
        """Moments and step counts as named tensors: "exp_avg/NAME", "exp_avg_sq/NAME", "step/NAME"."""
        tensors = {}
        for name, master in self.masters.items():
            for part, value in self._adamw.state.get(master, {}).items():
                tensors[f"{part}/{name}"] = value
        return tensors

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the `state()` of a checkpoint; names and shapes are the caller's to have checked."""
        for key, value in state.items():
            part, _, name = key.partition("/")
            master = self.masters[name]
            self._adamw.state[master][part] = value.to(master.device, copy=True)

    @staticmethod
    def _gradients(parameters: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        missing = [name for name, p in parameters.items() if p.grad is None]
        assert not missing, f"no gradient reached {missing}"
        return [p.grad for p in parameters.values() if p.grad is not None]
