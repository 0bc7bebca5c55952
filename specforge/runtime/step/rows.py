"""In: the loss masks of a `Pack`. Out: `RowPlan`, which rows each TTT step computes, on the host; one upload.

m: the loss mask without each document's last row. Row t at step k reads token t+1+k and teacher row t+k, weight
m[t+k], inside its document. It is kept at step k when one of m[t+k .. t+K-1] is set: nothing else is ever read of it.
Rows up to a document's last kept one also give step 0's keys and values: the context.
Legend: R rows of the pack, C context rows, Q kept rows of step 0, U teacher rows, W loss rows of all steps.
Context rows are ordered: kept rows first, those kept longest first. So the kept rows of step k are the first ones of
every step before, and taking them copies nothing.
On a GPU counts of rows are rounded up to CUDA_MULTIPLE: a matmul of a shape that was not seen before costs the host ten
times one that was. The rows that this adds are computed and never read, or repeat a row and weigh nothing.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from specforge_kernels.ttt_attention import CPU_TILING, CUDA_TILING, Blocks, Layout, blocks, key_layout, query_layout

from specforge.runtime.data.pack import Pack

CUDA_MULTIPLE = 128


@attrs.frozen(eq=False)
class StepRows:
    """TTT step k. `kept`: its first rows in context order. `loss`: how many of them carry loss.

    `ahead`: place in context order of row t+k, whose next token row t reads. `loss_at`: loss rows among the kept ones,
    None where they are the first. `attention`: where queries and keys go, the same object as the step before where the
    same rows ask.
    """

    kept: int
    loss: int
    ahead: Any
    loss_at: Any
    attention: Layout | Blocks


@attrs.frozen(eq=False)
class RowPlan:
    """Rows of a micro-step; index fields are int64 arrays on the host, tensors after `to`.

    `supervised`: m's count. `context_C`: rows of the pack. `position_C`: inside the document. `token_C`:
    the row whose token is read at step 0. `steps`: as many as have rows, at most K. `last_U`: rows of the target's
    last hidden state, one per teacher row. `teacher_W`: teacher row of each loss row. `step_W`: its TTT step.
    `context` and `loss`: how many of C and W are not padding. `keys_C`: context rows by document and position, the
    order in which the attention kernels want keys; None where they do not run.
    """

    supervised: int
    context: int
    loss: int
    context_C: Any
    position_C: Any
    token_C: Any
    steps: tuple[StepRows, ...]
    last_U: Any
    teacher_W: Any
    step_W: Any
    keys_C: Any = None

    def to(self, device: torch.device | str) -> RowPlan:
        """The same plan with its indices on `device`, in one copy."""
        arrays = [self.context_C, self.position_C, self.token_C, self.last_U, self.teacher_W, self.step_W]
        arrays += [] if self.keys_C is None else [self.keys_C]
        layouts = list({id(step.attention): step.attention for step in self.steps}.values())
        for step in self.steps:
            arrays += [step.ahead, *([] if step.loss_at is None else [step.loss_at])]
        for layout in layouts:
            arrays += layout.indices[layout.shared :]
        if layouts:
            arrays += layouts[0].indices[: layouts[0].shared]
        whole = torch.from_numpy(np.concatenate([a.ravel() for a in arrays]))
        whole = whole.pin_memory() if torch.device(device).type == "cuda" else whole
        parts = iter(whole.to(device, non_blocking=True).split([a.size for a in arrays]))
        context_C, position_C, token_C, last_U, teacher_W, step_W = (next(parts) for _ in range(6))
        keys_C = None if self.keys_C is None else next(parts)
        rows = [(next(parts), None if step.loss_at is None else next(parts)) for step in self.steps]
        own = [[next(parts) for _ in layout.indices[layout.shared :]] for layout in layouts]
        shared = tuple(parts)
        uploaded = {
            id(layout): layout.replaced((*shared, *indices)) for layout, indices in zip(layouts, own, strict=True)
        }
        steps = tuple(
            attrs.evolve(step, ahead=ahead, loss_at=loss_at, attention=uploaded[id(step.attention)])
            for step, (ahead, loss_at) in zip(self.steps, rows, strict=True)
        )
        return attrs.evolve(
            self,
            context_C=context_C,
            position_C=position_C,
            token_C=token_C,
            steps=steps,
            last_U=last_U,
            teacher_W=teacher_W,
            step_W=step_W,
            keys_C=keys_C,
        )


def row_plan(pack: Pack, ttt_length: int, cuda: bool = False, kernels: bool = False) -> RowPlan:
    """The rows of `pack` for `ttt_length` (K) steps; `cuda`: where attention will run, which decides its tiles.

    `kernels`: attention runs in Triton.
    """
    lengths = np.array(pack.lengths, np.int64)
    starts = np.cumsum(lengths) - lengths
    document_R = np.repeat(np.arange(len(lengths)), lengths)
    position_R = np.arange(len(document_R)) - starts[document_R]
    supervised_R = np.concatenate([d.loss_mask for d in pack.documents]).astype(bool)
    supervised_R[(starts + lengths - 1)[lengths > 0]] = False

    ahead_KR = np.stack([_ahead(supervised_R, position_R, lengths[document_R], k) for k in range(ttt_length)])
    last_step_R = np.where(ahead_KR, np.arange(ttt_length)[:, None], -1).max(0)
    context_D = np.zeros(len(lengths), np.int64)
    np.maximum.at(context_D, document_R[supervised_R], position_R[supervised_R] + 1)
    context_C = np.flatnonzero(position_R < context_D[document_R])
    context_C = context_C[np.argsort(-last_step_R[context_C], kind="stable")]
    place_R = np.full(len(document_R), -1)
    place_R[context_C] = np.arange(len(context_C))
    teacher_R = np.cumsum(supervised_R) - 1

    document_C, position_C, last_step_C = document_R[context_C], position_R[context_C], last_step_R[context_C]
    keys = None if kernels else key_layout(document_C, position_C, CUDA_TILING if cuda else CPU_TILING)
    counts_D = np.bincount(document_C, minlength=len(lengths))
    multiple = CUDA_MULTIPLE if cuda else 1
    steps: list[StepRows] = []
    teacher_W, kept = [], len(context_C)
    for k in range(ttt_length):
        needed = int((last_step_C >= k).sum())
        if needed == 0:
            break
        kept = min(kept, needed + -needed % multiple)
        at = np.flatnonzero(ahead_KR[k, context_C[:kept]])
        teacher_W.append(teacher_R[context_C[at] + k])
        if steps and steps[-1].kept == kept:
            layout = steps[-1].attention
        else:
            asking = document_C[:kept], position_C[:kept]
            layout = blocks(*asking, counts_D) if keys is None else query_layout(keys, *asking)
        ahead = place_R[np.minimum(context_C[:kept] + k, len(document_R) - 1)]
        if needed < kept:
            ahead[needed:] = _others(ahead[:needed], steps[0].kept if steps else kept, kept - needed)
        first = len(at) == 0 or at[-1] == len(at) - 1
        steps.append(StepRows(kept, len(at), ahead, None if first else at, layout))
    loss = sum(step.loss for step in steps)
    return RowPlan(
        supervised=int(supervised_R.sum()),
        context=len(context_C),
        loss=loss,
        context_C=_filled(context_C, multiple),
        position_C=_filled(position_C, multiple),
        token_C=_filled(context_C + 1, multiple),
        steps=tuple(steps),
        last_U=_filled(np.flatnonzero(supervised_R) + 1, multiple),
        teacher_W=_filled(np.concatenate([np.zeros(0, np.int64), *teacher_W]), multiple),
        step_W=_filled(np.repeat(np.arange(len(steps)), [s.loss for s in steps]), multiple),
        keys_C=np.lexsort((position_C, document_C)) if kernels else None,
    )


def _others(taken: np.ndarray, places: int, count: int) -> np.ndarray:
    """`count` of the first `places` that are not taken: what rows that nothing reads are given, each its own."""
    free = np.ones(places, bool)
    free[taken] = False
    return np.flatnonzero(free)[:count]


def _filled(rows: np.ndarray, multiple: int) -> np.ndarray:
    """Padded to a multiple by repeating the first row."""
    return np.concatenate([rows, np.full(-len(rows) % multiple, rows[0])]) if len(rows) % multiple else rows


def _ahead(mask_R: np.ndarray, position_R: np.ndarray, length_R: np.ndarray, k: int) -> np.ndarray:
    """mask[t+k] for every row t, False past the end of t's document."""
    ahead_R = np.zeros_like(mask_R)
    ahead_R[: max(0, len(mask_R) - k)] = mask_R[k:]
    return ahead_R & (position_R + k < length_R)
