"""In: an unroll's buffers, read by a stand-in for attention. Out: a backward pass finds nothing of the one before."""

import pytest
import torch

from specforge_kernels.ttt_attention.own_pairs import Buffers, OwnPairs

pytestmark = pytest.mark.cpu


class Reads(torch.autograd.Function):
    """A step that reads both pairs: it adds 1 to their gradients."""

    @staticmethod
    def forward(ctx, first, second, buffers: Buffers):
        ctx.buffers, ctx.tokens = buffers, (first, second)
        return torch.ones(())

    @staticmethod
    def backward(ctx, grad):
        for buffer in ctx.buffers.gradients():
            buffer += 1
        return *(token.new_empty(0) for token in ctx.tokens), None


def test_a_pass_that_ends_early_leaves_nothing_for_the_next():
    leaves = [torch.randn(3, 2, 4).requires_grad_() for _ in range(4)]
    pairs = OwnPairs(2, *leaves[:2])
    pairs.append(*leaves[:2])
    pairs.append(*leaves[2:])
    out = Reads.apply(*pairs.tokens, pairs.buffers)
    for wanted in (leaves[2:], leaves, leaves[2:], leaves):
        for grad in torch.autograd.grad(out, wanted, retain_graph=True):
            assert torch.equal(grad, torch.ones_like(grad))
