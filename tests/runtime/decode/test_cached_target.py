"""In: toy targets that scale or cap their logits. Out: decoding and the teacher form the target's own logits."""

import pytest
import torch
from specforge_kernels.soft_target_loss import AfterHead, teacher

from specforge.runtime.decode.cached_target import CachedTarget

pytestmark = pytest.mark.cpu
NAMES = ["llama", "gemma2", "cohere2", "granite"]
TOKENS_1S = torch.tensor([[5, 90, 33, 7, 61, 12, 80, 3]])


def own(target) -> torch.Tensor:
    """[S, V], without a cache and without any of our code."""
    with torch.no_grad():
        return target.model(input_ids=TOKENS_1S, use_cache=False).logits[0]


@pytest.mark.parametrize("name", NAMES)
def test_decoding_sees_the_targets_own_logits(toy_target, name):
    target = toy_target(name)
    with torch.no_grad(), CachedTarget(target, (), 1) as cached:
        found = cached.logits(cached.forward(TOKENS_1S, torch.arange(8)[None]).last_BSH)[0]
    torch.testing.assert_close(found, own(target), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_forms_the_targets_own_logits(toy_target, name):
    target, kept_d = toy_target(name), torch.arange(0, 128, 3)
    with torch.no_grad():
        last_SH = target.decoder(input_ids=TOKENS_1S, use_cache=False).last_hidden_state[0]
    after, expected = target.settings.geometry.logits, own(target)
    taught = teacher(last_SH, target.head_VH, kept_d, after=AfterHead(after.scale, after.softcap))
    torch.testing.assert_close(taught.logits_Ud, expected[:, kept_d], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(taught.lse_full_U, expected.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert torch.equal(taught.argmax_U, expected.argmax(-1))


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_toys_say_something_else_than_their_heads(toy_target, name):
    target = toy_target(name)
    with torch.no_grad():
        plain = target.decoder(input_ids=TOKENS_1S, use_cache=False).last_hidden_state[0] @ target.head_VH.T
    assert (plain - own(target)).abs().max() > 0.1
