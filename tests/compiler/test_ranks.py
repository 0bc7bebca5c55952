"""In: recipes of several ranks. Out: what their plans say of ranks, GPUs, batch arithmetic and memory."""

import pytest

from specforge.compiler import compile, load
from specforge.compiler.show import text

pytestmark = pytest.mark.null


def plan(write, topology, train="Capture(rows, target), Eagle3(), batch_size=4, accumulation=3"):
    return compile(load(write(train=train, rest=f"topology=Colocated({topology})")))


def test_gpus_give_a_rank_each(write):
    made = plan(write, "device='H200', gpus=[2, 0]")
    (role,) = made.roles
    assert (role.ranks, role.gpus, made.batch.ranks) == (2, (2, 0), 2)
    assert (made.batch.step_documents, made.batch.step_tokens_at_most) == (24, 24 * 32)
    shown = text(made)
    assert "trainer  GPUs 2, 0  2 ranks on H200" in shown
    assert "4 documents × 3 micro-steps × 2 ranks = 24 documents and at most 768 tokens an optimizer step" in shown
    assert "a rank has 3 micro-steps of each step; gradients are summed once a step" in shown


def test_ranks_on_a_cpu_are_processes(write):
    made = plan(write, "ranks=3", train="Capture(rows, target), Eagle3(), pack_tokens=64")
    assert (made.roles[0].ranks, made.roles[0].gpus) == (3, ())
    assert "a pack of at most 64 tokens × 1 micro-step × 3 ranks = at most 192 tokens an optimizer step" in text(made)


def test_a_rank_holds_what_one_rank_holds_and_a_bucket_to_sum_gradients_in(write):
    several, one = ({p.name: p.bytes for p in plan(write, ranks).memory} for ranks in ("ranks=4", "ranks=1"))
    trained = one["AdamW moments"] // 2
    assert several == one | {"gradient bucket": trained}
