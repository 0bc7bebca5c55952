"""In: the cases. Out: value and every gradient of the op equal the float64 reference's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specforge_kernels.ttt_attention import (
    key_layout,
    merged,
    query_layout,
    ttt_attention,
    ttt_attention_part,
)
from specforge_kernels.ttt_attention.cases import SMALL, TOLERANCE, Case, inputs
from specforge_kernels.ttt_attention.layout import CPU_TILING
from specforge_kernels.ttt_attention.reference import reference


def relative(found, expected):
    return ((found.double() - expected).norm() / expected.norm().clamp(min=0.1)).item()


def compare(case, dtype, device, seed=0):
    """Largest relative error of the output and of each gradient against the reference on the same (rounded) inputs."""
    given = inputs(case, dtype, device, seed)
    query, key, value, suffix_keys, suffix_values = given.tensors
    exact = [x.detach().double().requires_grad_() for x in given.leaves]
    k = case.suffix
    out = ttt_attention(query, key, value, suffix_keys, suffix_values, given.layout)
    expected = reference(*exact[:3], exact[3 : 3 + k], exact[3 + k :], given.rows)
    assert out.dtype == dtype
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype).to(device)
    found = torch.autograd.grad(out, given.leaves, grad)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    assert all(g.dtype == dtype for g in found)
    return max(relative(a, b) for a, b in zip([out, *found], [expected, *wanted], strict=True))


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_value_and_gradients(name, dtype):
    assert compare(SMALL[name], dtype, "cpu") < TOLERANCE[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_value_and_gradients_on_the_gpu(name, dtype):
    assert compare(SMALL[name], dtype, "cuda") < TOLERANCE[dtype]


@pytest.mark.cpu
@pytest.mark.parametrize("seed", range(8))
def test_random_lengths(seed):
    rng = np.random.default_rng(seed)
    lengths = tuple(int(n) for n in rng.integers(1, 60, rng.integers(1, 6)))
    case = Case(lengths, float(rng.random()), int(rng.integers(0, 5)))
    assert compare(case, torch.float64, "cpu", seed) < 1e-12


def cut(given, first):
    """The queries at `first` or later, by two parts of the keys: those before it, and the others with the own pairs."""
    query, key, value, suffix_keys, suffix_values = given.tensors
    rows, parts = given.rows, []
    asks = rows.position_Q >= first
    for which, start in ((rows.position_C < first, 0), (rows.position_C >= first, first)):
        documents, positions = rows.document_C[which].numpy(), rows.position_C[which].numpy() - start
        most = np.bincount(documents)[rows.document_Q[asks].numpy()] - 1
        at = np.minimum(rows.position_Q[asks].numpy() - start, most)
        layout = query_layout(key_layout(documents, positions), rows.document_Q[asks].numpy(), at).to("cpu")
        own = [[x[: len(asks)][asks] for x in xs] if start else [] for xs in (suffix_keys, suffix_values)]
        parts.append(ttt_attention_part(query[asks], key[which], value[which], *own, layout))
    return parts, asks


@pytest.mark.cpu
@pytest.mark.parametrize("suffix", [0, 3])
def test_merged_parts_are_the_whole_with_its_gradients(suffix):
    """As ranks of a sequence-parallel run hold them: each attends to its keys, and what they have is merged by LSE."""
    given = inputs(Case((11, 14), 1.0, suffix), torch.float64)
    whole, lse = ttt_attention_part(*given.tensors, given.layout)
    parts, asks = cut(given, 6)
    out, merged_lse = merged(parts)
    torch.testing.assert_close(out, whole[asks], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged_lse, lse[asks], rtol=1e-12, atol=1e-12)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(merged_lse)
    wanted = torch.autograd.grad((whole[asks], lse[asks]), given.leaves, (grad, grad_lse), retain_graph=True)
    found = torch.autograd.grad((out, merged_lse), given.leaves, (grad, grad_lse))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.cpu
def test_other_documents_and_later_rows_do_not_matter():
    case = Case((6, 8), suffix=1)
    given = inputs(case, torch.float64)
    query, key, value, suffix_keys, suffix_values = given.tensors
    before = ttt_attention(query, key, value, suffix_keys, suffix_values, given.layout)
    rows = given.rows
    noisy = (rows.document_C == 1) | (rows.position_C > 3)
    key, value = (torch.where(noisy[:, None, None], torch.full_like(x, 50.0), x) for x in (key, value))
    after = ttt_attention(query, key, value, suffix_keys, suffix_values, given.layout)
    same = (rows.document_Q == 0) & (rows.position_Q <= 3)
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[~same], after[~same])


@pytest.mark.cpu
def test_large_scores_stay_finite():
    given = inputs(Case((5, 3), suffix=2), torch.float32)
    query, key, value, suffix_keys, suffix_values = given.tensors
    out = ttt_attention(query * 1e4, key * 1e4, value, suffix_keys, suffix_values, given.layout)
    grads = torch.autograd.grad(out.sum(), given.leaves)
    assert all(torch.isfinite(x).all() for x in [out, *grads])


@pytest.mark.cpu
def test_documents_without_queries_or_keys_are_left_alone():
    document_C, position_C = np.array([0, 0, 0, 2, 2]), np.array([0, 1, 2, 0, 1])
    layout = query_layout(key_layout(document_C, position_C), np.array([2]), np.array([1])).to("cpu")
    query, key = torch.ones(1, 2, 4), torch.randn(5, 2, 4, requires_grad=True)
    ttt_attention(query, key, key, [], [], layout).sum().backward()
    assert torch.count_nonzero(key.grad[:3]) == 0
    assert torch.count_nonzero(key.grad[3:]) > 0


@pytest.mark.cpu
def test_layout_groups_like_lengths_and_cuts_by_causality():
    lengths = (3000, 60, 50, 2900)
    document = np.repeat(np.arange(4), lengths)
    position = np.concatenate([np.arange(n) for n in lengths])
    layout = query_layout(key_layout(document, position), document, position)
    assert [(g.documents, g.keys) for g in layout.groups] == [(2, 3000), (2, 60)]
    assert [t.keys for t in layout.tiles[:2]] == [CPU_TILING.query_block, 2 * CPU_TILING.query_block]
    assert max(t.queries for t in layout.tiles) == CPU_TILING.query_block
    assert (layout.query_slots_S[layout.query_home_Q] == np.arange(len(document))).all()
    assert (layout.key_slots_S[layout.key_home_C] == np.arange(len(document))).all()
