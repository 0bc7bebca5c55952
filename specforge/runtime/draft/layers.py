"""In: hidden rows. Out: the parts of a Llama-like draft: RMSNorm, rotary positions, SwiGLU.

Legend: ... any leading axes, Q rows, N heads, H hidden, I intermediate, h half of a head's width.
"""

from __future__ import annotations

from typing import Any

import torch
from specforge_kernels.implementation import implementation as chosen
from specforge_kernels.rms_norm import norm_gradients, normed, rms_norm
from specforge_kernels.swiglu import gated_down
from specforge_kernels.weight_sum import weight_gradient
from torch import nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specforge.runtime.draft.ties import NoTies, Tied, Ties, added
from specforge.settings import DraftSettings

NO_TIES = NoTies()
UNSCALED = ("default", "mrope")


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A bias-free Linear whose weight is not initialised: no draw from any generator."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    """x * rsqrt(mean(x²) + eps), statistics in float32 or wider, rounded to x's dtype, then times the weight [H]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.implementation = eps, "auto"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._in_triton(x):
            return rms_norm(x, self.weight, self.eps)
        return _RMSNorm.apply(x, self.weight, self.eps)

    def then(
        self, x: torch.Tensor, *weights: torch.Tensor | Tied, added: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """norm(x) @ w^T for each of the weights, of rows [R, H]; `added` to the first of them.

        The normed rows are not kept: the backward pass makes them again, which is one pass over x.
        """
        tied = [w if isinstance(w, Tied) else Tied(w) for w in weights]
        how = (self.eps, self._in_triton(x), [t.sum for t in tied])
        return _NormThen.apply(x, self.weight, how, added, *(t.weight for t in tied))

    def _in_triton(self, x: torch.Tensor) -> bool:
        return x.dtype == self.weight.dtype and chosen(x.device, x.dtype, self.implementation) == "triton"


class _RMSNorm(torch.autograd.Function):
    """By hand, so that only x and one scale per row are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_norm_gradients(grads[0], *ctx.saved_tensors, ctx.needs_input_grad[:2]), None


class _NormThen(torch.autograd.Function):
    """A norm and the linear maps that read it."""

    @staticmethod
    def forward(ctx: Any, x, weight, how, added, *weights):  # type: ignore[no-untyped-def]
        eps, triton, _ = ctx.how = how
        rows, scale = (normed if triton else _normed)(x, weight, eps)
        ctx.save_for_backward(x, weight, scale, *weights)
        first = rows @ weights[0].t() if added is None else torch.addmm(added, rows, weights[0].t())
        return first, *(rows @ w.t() for w in weights[1:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale, *weights = ctx.saved_tensors
        eps, triton, sums = ctx.how
        rows = (normed if triton else _normed)(x, weight, eps)[0]
        of_weights = [weight_gradient(g, rows, total) for g, total in zip(grads, sums, strict=True)]
        of_rows = grads[0] @ weights[0]
        for g, w in zip(grads[1:], weights[1:], strict=True):
            of_rows = torch.addmm(of_rows, g, w)
        if triton:
            of_x, of_norm = norm_gradients(of_rows, x, weight, scale)
        else:
            of_x, of_norm = _norm_gradients(of_rows, x, weight, scale, (True, True))
        return of_x, of_norm, None, grads[0] if ctx.needs_input_grad[3] else None, *of_weights


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The normed rows, and the scale of each."""
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight), scale


def _norm_gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Of x and of the weight, where `wanted`."""
    grad = grad.to(scale.dtype)
    both = grad * x
    grad_x = grad_weight = None
    if wanted[1]:
        grad_weight = torch.mv(both.flatten(0, -2).t(), scale.flatten()).to(weight.dtype)
    if wanted[0]:
        wide_weight = weight.to(scale.dtype)
        dot = torch.matmul(both, wide_weight)[..., None]
        pull = dot.mul_(scale.square()).div_(x.shape[-1])
        grad_x = (grad * wide_weight).addcmul_(x.to(scale.dtype), pull, value=-1).mul_(scale).to(x.dtype)
    return grad_x, grad_weight


class MLP(nn.Module):
    """x + down(act(gate(norm(x))) * up(norm(x)))."""

    def __init__(self, hidden: int, intermediate: int, act: str) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, intermediate)
        self.up_proj = linear(hidden, intermediate)
        self.down_proj = linear(intermediate, hidden)
        self.act, self.silu, self.implementation = ACT2FN[act], act in ("silu", "swish"), "auto"

    def forward(self, x: torch.Tensor, norm: RMSNorm, ties: Ties = NO_TIES) -> torch.Tensor:
        """Of rows [..., H]."""
        rows, down = x.flatten(0, -2), ties.of(self.down_proj.weight)
        gate, up = norm.then(rows, ties.of(self.gate_proj.weight), ties.of(self.up_proj.weight))
        if self.silu and chosen(gate.device, gate.dtype, self.implementation) == "triton":
            return gated_down(gate, up, down.weight, rows, down.sum).view(x.shape)
        return added(rows, self.act(gate) * up, down).view(x.shape)


class Rotary(nn.Module):
    """cos and sin of any position, in float32 whatever the module is cast to.

    `rope`: transformers v5 `rope_parameters`. Frequencies follow transformers at `max_position_embeddings`; there is
    no table to run out of. Raises ValueError for a rope type or a partial rotation that the draft cannot do.
    """

    inv_freq: torch.Tensor

    def __init__(self, settings: DraftSettings) -> None:
        super().__init__()
        self._exact, self.scaling = _frequencies(settings)
        self.register_buffer("inv_freq", self._exact.clone(), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Rotary:
        super()._apply(fn, recurse)
        self.inv_freq = self._exact.to(self.inv_freq.device)
        return self

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [..., 1, h] for int positions [...]: they broadcast over heads."""
        angles = positions[..., None, None].to(torch.float32) * self.inv_freq
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def _frequencies(settings: DraftSettings) -> tuple[torch.Tensor, float]:
    rope = dict(settings.rope)
    kind, width = rope.get("rope_type", "default"), settings.head_dim
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"draft: rope partial_rotary_factor={rope['partial_rotary_factor']} is not supported; "
            "a Llama draft rotates whole heads, remove it from the draft's rope"
        )
    if kind in UNSCALED:
        exponents = torch.arange(0, width, 2, dtype=torch.int64).to(torch.float32) / width
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(sorted({*UNSCALED, *ROPE_INIT_FUNCTIONS}))
        raise ValueError(f"draft: rope_type={kind!r} is unknown; choose one of {known}")
    config = LlamaConfig(
        hidden_size=settings.hidden_size,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_kv_heads,
        head_dim=width,
        max_position_embeddings=settings.max_position_embeddings,
        rope_parameters=rope,
    )
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.to(torch.float32), float(scaling)
