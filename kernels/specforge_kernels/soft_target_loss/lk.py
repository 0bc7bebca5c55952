"""In: which rows belong to which TTT step, and their weights. Out: `LK`, the LK losses (arXiv 2602.23881) per step.

Legend: W rows, K TTT steps, c rows of a chunk, d draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EPS = 1e-8


@dataclass(frozen=True, eq=False)
class LK:
    """The loss of step k over its counted rows, with abar_k their mean acceptance; the sum over k is taken.

    `kind` "alpha":  L_k = - share_k · mean(log acceptance), where a row of acceptance exactly 0 adds 0
    `kind` "lambda": L_k = w_k · sum(weight · ce) + (1 - w_k) · share_k · (1 - abar_k), with
                     w_k = kl_scale · exp(-kl_decay · abar_k), constant for the gradient
    A step without counted rows adds 0. Means divide by the count + 1e-8.
    `weight_W`: of each row's cross-entropy, 0 where a row does not count; `counted_W`: bool; `step_W`: int64 in [0, K);
    `share_K`: float64, the weight of each step's mean.
    """

    kind: str
    weight_W: torch.Tensor
    counted_W: torch.Tensor
    step_W: torch.Tensor
    share_K: torch.Tensor
    kl_scale: float = 1.0
    kl_decay: float = 1.0

    def losses(self, ce_W: torch.Tensor, acceptance_W: torch.Tensor) -> torch.Tensor:
        """L_k, float64 [K]."""
        if self.kind == "alpha":
            log_W = torch.where(acceptance_W > 0, acceptance_W, 1.0).to(torch.float64).log()
            return -self.share_K * self._mean(log_W)
        accepted_K = self._mean(acceptance_W)
        ce_share_K = self._ce_share(accepted_K)
        rest_K = (1 - ce_share_K) * self.share_K * (1 - accepted_K) * (self._counts() > 0)
        return ce_share_K * self._sum(self.weight_W * ce_W) + rest_K

    def row_weights(self, acceptance_W: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """d loss / d ce, and d loss / d acceptance ("alpha": / d log acceptance), of each row: float64 [W].

        "alpha" does not read `acceptance_W`.
        """
        ce_share_K = torch.zeros_like(self.share_K)
        if self.kind == "lambda":
            ce_share_K = self._ce_share(self._mean(acceptance_W))
        rest_K = (1 - ce_share_K) * self.share_K / (self._counts() + EPS)
        return ce_share_K[self.step_W] * self.weight_W, -rest_K[self.step_W] * self.counted_W

    def _ce_share(self, accepted_K: torch.Tensor) -> torch.Tensor:
        return self.kl_scale * torch.exp(-self.kl_decay * accepted_K.detach())

    def _mean(self, values_W: torch.Tensor) -> torch.Tensor:
        return self._sum(torch.where(self.counted_W, values_W, 0.0)) / (self._counts() + EPS)

    def _counts(self) -> torch.Tensor:
        return self._sum(self.counted_W)

    def _sum(self, values_W: torch.Tensor) -> torch.Tensor:
        """By step, in a fixed order: float64 [K]."""
        steps_K1 = torch.arange(self.share_K.shape[0], device=self.step_W.device)[:, None]
        return torch.where(self.step_W == steps_K1, values_W.to(torch.float64), 0.0).sum(1)
