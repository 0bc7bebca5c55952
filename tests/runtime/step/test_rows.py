"""In: loss masks. Out: the row plan holds exactly the rows that the definitions name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.step.rows import row_plan

pytestmark = pytest.mark.cpu


def packed(masks):
    return Pack(
        tuple(Document(i, np.zeros(len(m), np.int32), np.array(m, bool)) for i, m in enumerate(masks)),
    )


def by_definition(masks, steps):
    """(kept, loss) sets per step, context and teacher rows: read off the definitions with loops."""
    kept, loss = [set() for _ in range(steps)], [set() for _ in range(steps)]
    context, teacher, start = set(), set(), 0
    for mask in masks:
        m = [*mask[:-1], 0]
        for t in range(len(m)):
            for k in range(steps):
                if any(t + j < len(m) and m[t + j] for j in range(k, steps)):
                    kept[k].add(start + t)
                if t + k < len(m) and m[t + k]:
                    loss[k].add((start + t, start + t + k))
        supervised = [t for t in range(len(m)) if m[t]]
        teacher |= {start + t for t in supervised}
        context |= {start + t for t in range(max(supervised, default=-1) + 1)}
        start += len(m)
    return kept, loss, context, teacher


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_the_definitions(seed):
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(1, 8))
    masks = [(rng.random(rng.integers(1, 15)) < rng.choice([0.1, 0.5, 1.0])).astype(int).tolist() for _ in range(3)]
    kept, loss, context, teacher = by_definition(masks, steps)
    plan = row_plan(packed(masks), steps)
    assert plan.supervised == len(teacher)
    assert len(plan.context_C) == len(context)
    assert set(plan.context_C.tolist()) == context
    assert (plan.last_U - 1).tolist() == sorted(teacher)
    assert len(plan.steps) == sum(bool(k) for k in kept)
    offset = 0
    for k, rows in enumerate(plan.steps):
        order = plan.context_C[: rows.kept]
        assert set(order.tolist()) == kept[k]
        assert (plan.context_C[rows.ahead] == order + k).all()
        at = np.arange(rows.loss) if rows.loss_at is None else rows.loss_at
        teachers = plan.last_U[plan.teacher_W[offset : offset + rows.loss]] - 1
        assert set(zip(order[at].tolist(), teachers.tolist(), strict=True)) == loss[k]
        assert (plan.step_W[offset : offset + rows.loss] == k).all()
        offset += rows.loss
    assert offset == len(plan.teacher_W)


def test_upload_changes_no_index():
    plan = row_plan(packed([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1]]), 3)
    there = plan.to("cpu")
    for name in ("context_C", "position_C", "token_C", "last_U", "teacher_W", "step_W"):
        assert torch.equal(getattr(there, name), torch.from_numpy(getattr(plan, name)))
    for left, right in zip(plan.steps, there.steps, strict=True):
        assert torch.equal(right.ahead, torch.from_numpy(left.ahead))
        assert (left.loss_at is None) == (right.loss_at is None)
        for a, b in zip(left.attention.indices, right.attention.indices, strict=True):
            assert torch.equal(b, torch.from_numpy(a))


def test_steps_where_the_same_rows_ask_share_a_layout():
    plan = row_plan(packed([[1] * 300]), 3, cuda=True, kernels=True)
    for steps in (plan.steps, plan.to("cpu").steps):
        assert [step.kept for step in steps] == [299] * 3
        assert steps[0].attention is steps[1].attention is steps[2].attention


def test_nothing_supervised_plans_no_step():
    plan = row_plan(packed([[0, 0, 1], [1]]), 4)
    assert plan.steps == ()
    assert plan.supervised == len(plan.context_C) == len(plan.teacher_W) == 0
    assert plan.to("cpu").steps == ()
