"""In: hidden rows, a head and a teacher. Out: cross-entropy, acceptance, accuracy. Formula and figures: README.md."""

from specforge_kernels.soft_target_loss.lk import LK
from specforge_kernels.soft_target_loss.op import SoftTargetLoss, lk_loss, soft_target_loss
from specforge_kernels.soft_target_loss.teacher import AfterHead, Teacher, teacher

__all__ = ["LK", "AfterHead", "SoftTargetLoss", "Teacher", "lk_loss", "soft_target_loss", "teacher"]
