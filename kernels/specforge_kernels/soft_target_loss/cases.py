"""In: nothing. Out: the shapes that the test and the bench run, and fresh random inputs for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specforge_kernels.soft_target_loss.lk import LK
from specforge_kernels.soft_target_loss.teacher import Teacher, teacher

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """W rows of width H over d of V ids; U teacher rows of target width Ht. `silent`: share of rows of weight 0.

    `identity`: the head is the identity, H = d, so that a row is its logits and no dtype rounds them.
    """

    rows: int
    hidden: int
    draft_vocab: int
    vocab: int
    teachers: int
    target_hidden: int = 6
    silent: float = 0.3
    identity: bool = False


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments of the op in order (rows and head want gradients), and what the teacher was made from."""

    arguments: tuple
    last_UH: torch.Tensor
    head_VH: torch.Tensor
    kept_d: torch.Tensor

    @property
    def leaves(self) -> list[torch.Tensor]:
        return list(self.arguments[:2])

    @property
    def teacher(self) -> Teacher:
        return self.arguments[2]


SMALL = {
    "one row": Case(1, 5, 7, 12, 1, silent=0.0),
    "odd sizes": Case(37, 9, 131, 333, 11),
    "whole vocabulary": Case(20, 8, 65, 65, 7),
    "all rows of weight 0": Case(9, 8, 20, 40, 4, silent=1.0),
    "blocks of the vocabulary": Case(33, 8, 1024, 2048, 9),
    "several chunks": Case(700, 8, 4099, 5000, 40),
    "one id": Case(6, 4, 1, 9, 3),
}
BENCH = {
    "SmolLM2, 7 steps of 956 rows": Case(6692, 576, 8192, 49152, 956, 576, 0.1),
    "Llama-3-8B, 7 steps of 2047 rows": Case(14329, 4096, 32000, 128256, 2047, 4096, 0.1),
}


def inputs(case: Case, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Inputs:
    """Rows have unit scale and heads give logits of standard deviation 2. Each teacher row serves several rows."""
    generator = torch.Generator().manual_seed(seed)

    def made(*shape: int) -> torch.Tensor:
        wide = torch.float64 if case.rows < 1000 else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype).to(device)

    rows_WH, head_dH = made(case.rows, case.hidden), made(case.draft_vocab, case.hidden) * (2 / case.hidden**0.5)
    if case.identity:
        head_dH = torch.eye(case.hidden, dtype=dtype, device=device)
    head_VH = made(case.vocab, case.target_hidden) * (2 / case.target_hidden**0.5)
    last_UH = made(case.teachers, case.target_hidden)
    kept_d = torch.randperm(case.vocab, generator=generator)[: case.draft_vocab].sort().values
    index_W = torch.randint(0, case.teachers, (case.rows,), generator=generator)
    wide = torch.promote_types(dtype, torch.float32)
    weight_W = torch.rand(case.rows, generator=generator, dtype=wide) / case.rows
    weight_W[torch.rand(case.rows, generator=generator) < case.silent] = 0
    d2t_d = kept_d - torch.arange(case.draft_vocab)
    taught = teacher(last_UH, head_VH, kept_d.to(device))
    rest = (taught, index_W.to(device), weight_W.to(device), d2t_d.to(device))
    arguments = (rows_WH.requires_grad_(), head_dH.requires_grad_(), *rest)
    return Inputs(arguments, last_UH, head_VH, kept_d.to(device))


def _at_kink(given: Inputs) -> torch.Tensor:
    """bool [W]: some token of the row has p and q within 1e-5 of each other, which float32 cannot tell apart safely."""
    rows_WH, head_dH, taught, index_W = given.arguments[:4]
    q_Wd = torch.softmax(rows_WH.detach().double() @ head_dH.detach().double().t(), -1)
    p_Wd = (taught.logits_Ud.double() - taught.lse_full_U.double()[:, None]).exp()[index_W]
    return ((q_Wd - p_Wd).abs() < 1e-5 * p_Wd).any(1)


def lk_inputs(case: Case, kind: str, dtype: torch.dtype, device: str = "cpu") -> Inputs:
    """The same for lk_loss: 3 steps, the second without counted rows; the rows of weight 0 do not count.

    Rows where min(p, q) is at its kink do not count either: rounding picks the side there, and with it the gradient.
    """
    given = inputs(case, dtype, device)
    weight_W = given.arguments[4] * ~_at_kink(given)
    step_W = 2 * (torch.arange(case.rows, device=device) * 2 // case.rows)
    share_K = torch.tensor([1.0, 0.8, 0.64], dtype=torch.float64, device=device)
    objective = LK(kind, weight_W, weight_W > 0, step_W, share_K, kl_scale=1.3, kl_decay=2.0)
    return Inputs((*given.arguments[:4], objective, given.arguments[5]), given.last_UH, given.head_VH, given.kept_d)
