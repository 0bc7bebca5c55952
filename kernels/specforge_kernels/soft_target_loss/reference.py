"""In: hidden rows, a head and a teacher. Out: loss, cross-entropy, acceptance, accuracy, as the formulas read.

Legend: W rows, H hidden, d draft vocabulary, U teacher rows.
"""

from __future__ import annotations

import torch

from specforge_kernels.soft_target_loss.lk import LK
from specforge_kernels.soft_target_loss.op import SoftTargetLoss
from specforge_kernels.soft_target_loss.teacher import Teacher


def reference(
    rows_WH: torch.Tensor,
    head_dH: torch.Tensor,
    teacher: Teacher,
    teacher_index_W: torch.Tensor,
    weight_W: torch.Tensor | LK,
    d2t_d: torch.Tensor,
) -> SoftTargetLoss:
    """The same as op.soft_target_loss, through autograd and with all logits at once: for tests and small inputs.

    Where `weight_W` is an LK, the same as op.lk_loss.

    ce = -sum_v p log q and acceptance = sum_v min(p_full, q), with q = softmax(rows @ head^T), p the teacher
    normalised over the draft vocabulary and p_full over the full one (so its sum is at most 1).
    """
    logits_Wd = rows_WH @ head_dH.t()
    wide = torch.promote_types(logits_Wd.dtype, torch.float32)
    z_Wd = teacher.logits_Ud[teacher_index_W].to(wide)
    p_Wd = (z_Wd - teacher.lse_draft_U[teacher_index_W, None]).exp()
    p_full_Wd = (z_Wd - teacher.lse_full_U[teacher_index_W, None]).exp()
    ce_W = -(p_Wd * torch.log_softmax(logits_Wd.to(wide), -1)).sum(-1)
    acceptance_W = torch.minimum(p_full_Wd, torch.softmax(logits_Wd.to(wide), -1)).sum(-1)
    top_W = logits_Wd.argmax(-1)
    return SoftTargetLoss(
        loss=weight_W.losses(ce_W, acceptance_W).sum() if isinstance(weight_W, LK) else (weight_W * ce_W).sum(),
        ce_W=ce_W.detach(),
        acceptance_W=acceptance_W.detach(),
        correct_W=top_W + d2t_d[top_W] == teacher.argmax_U[teacher_index_W],
    )
