"""Which rounding to bfloat16 costs the EAGLE3 step's gradients what. In: sizes. Out: ||g - ref|| / ||ref|| per weight.

    python docs/benchmarks/eagle3_step/roundings.py [--hidden 1024] [--rows 128] [--deviation 0.02]

The step written out in float32, random weights and features that are exact in bfloat16, 7 TTT steps. A site rounds its
tensor, its gradient, or both; each is switched on alone, then all that a tensor core asks for (the inputs of matmuls),
then all that a step with bfloat16 tensors has. Minutes on a CPU. The deviation of the weights is that of Llama-3-8B's
width, 4096, carried to the width asked for: what a matmul multiplies a row's length by stays the same.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

STEPS, WIDTH, DECAY, EPS, WIDE = 7, 128, 0.8, 1e-5, 4096
SITES = {  # name -> is it an input of a matmul
    "fc": False,
    "norm 1": True,
    "q, k, v": False,
    "rotated": True,
    "probabilities": True,
    "attended": True,
    "after attention": False,
    "norm 2": True,
    "gate, up": False,
    "product": True,
    "after MLP": False,
    "head norm": True,
    "logits": False,
}
WAYS = ("forward", "backward")


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: bool, backward: bool) -> torch.Tensor:
        ctx.backward = backward
        return rounded(x) if forward else x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return rounded(grads[0]) if ctx.backward else grads[0], None, None


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def rotated(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    angle = position[:, None, None] / 500000.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    low, high = x.chunk(2, -1)
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)


class Model:
    """Weights, features and teacher of one document of T rows."""

    def __init__(self, hidden: int, rows: int, deviation: float) -> None:
        self.heads, self.rows, inner, draft, target = hidden // WIDTH, rows, hidden * 7 // 2, 4000, 8000
        generator = torch.Generator().manual_seed(0)
        scale = (WIDE / hidden) ** 0.5

        def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
            return rounded(torch.randn(*shape, generator=generator) * deviation)

        own, kv, of = self.heads * WIDTH, self.heads // 4 * WIDTH, deviation * scale
        sizes = {
            "fc": (hidden, 3 * hidden),
            "q": (own, 2 * hidden),
            "k": (kv, 2 * hidden),
            "v": (kv, 2 * hidden),
            "o": (hidden, own),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
            "head": (draft, hidden),
        }
        self.weights = {name: normal(*size, deviation=of) for name, size in sizes.items()}
        self.aux_RC, last_RH = normal(rows, 3 * hidden), normal(rows + STEPS, hidden)
        self.embedded_RH = rounded(norm(normal(rows + STEPS, hidden)))
        teacher_RV = rounded(last_RH @ normal(target, hidden, deviation=0.03 * scale).t())
        self.teacher_RV = teacher_RV[:, :draft].softmax(-1)

    def gradients(self, on: set[tuple[str, str]]) -> dict[str, torch.Tensor]:
        w = {name: x.clone().requires_grad_() for name, x in self.weights.items()}

        def at(site: str, x: torch.Tensor) -> torch.Tensor:
            return _Round.apply(x, (site, "forward") in on, (site, "backward") in on)

        rows, heads, position = self.rows, self.heads, torch.arange(self.rows)
        later = torch.full((rows, rows), float("-inf")).triu(1)
        hidden, keys, values, loss = at("fc", self.aux_RC @ w["fc"].t()), [], [], torch.zeros(())
        for k in range(STEPS):
            joined = torch.cat([self.embedded_RH[k : k + rows], at("norm 1", norm(hidden))], -1)
            query, key, value = (at("q, k, v", joined @ w[x].t()).view(rows, -1, WIDTH) for x in "qkv")
            query, key = (at("rotated", rotated(x, position + k)) for x in (query, key))
            keys.append(key.repeat_interleave(4, 1))
            values.append(value.repeat_interleave(4, 1))
            scores = [torch.einsum("qnd,knd->nqk", query, keys[0]) * WIDTH**-0.5 + later]
            scores += [(query * own).sum(-1).t()[..., None] * WIDTH**-0.5 for own in keys[1:]]
            seen = at("probabilities", torch.cat(scores, -1).softmax(-1))
            out = torch.einsum("nqk,knd->qnd", seen[..., :rows], values[0])
            out = out + sum(seen[..., rows + i].t()[..., None] * own for i, own in enumerate(values[1:]))
            attended = at("attended", out.reshape(rows, heads * WIDTH))
            hidden = at("after attention", hidden + attended @ w["o"].t())
            normed = at("norm 2", norm(hidden))
            gate, up = (at("gate, up", normed @ w[x].t()) for x in ("gate", "up"))
            product = at("product", torch.nn.functional.silu(gate) * up)
            hidden = at("after MLP", hidden + product @ w["down"].t())
            logits = at("logits", at("head norm", norm(hidden)) @ w["head"].t())
            teacher = self.teacher_RV[k : k + rows]
            loss = loss + DECAY**k * torch.nn.functional.cross_entropy(logits, teacher, reduction="sum") / rows
        loss.backward()
        return {name: x.grad for name, x in w.items() if x.grad is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 512")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--deviation", type=float, default=0.02, help="of weights at a hidden size of 4096")
    given = parser.parse_args()
    model = Model(given.hidden, given.rows, given.deviation)
    exact = model.gradients(set())
    print(f"| rounded (x 1e-3) | {' | '.join(exact)} |")
    print("|---" * (len(exact) + 1) + "|")

    def row(name: str, on: set[tuple[str, str]]) -> None:
        found = model.gradients(on)
        errors = ((found[x] - exact[x]).norm() / exact[x].norm() for x in exact)
        print(f"| {name} | {' | '.join(f'{float(e) * 1e3:.1f}' for e in errors)} |", flush=True)

    for site in SITES:
        for way in WAYS:
            row(f"{site}, {way}", {(site, way)})
    row("what matmuls read", {(site, way) for site, reads in SITES.items() for way in WAYS if reads})
    row("all, forward", {(site, "forward") for site in SITES})
    row("all, backward", {(site, "backward") for site in SITES})
    row("all", {(site, way) for site in SITES for way in WAYS})


if __name__ == "__main__":
    main()
