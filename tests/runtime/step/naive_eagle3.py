"""In: weights and documents as they are. Out: EAGLE3's loss, written from its formulas, row by row, in float64.

Dense: every row of every step, padded and shifted as the formulas say. Nothing of the product is imported.
Legend: T tokens of a document, H hidden, V target vocabulary, d draft vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Case:
    """Sizes and options. `weights`: the draft's state_dict in float64. `head`: the target's LM head [V, H]."""

    weights: dict[str, torch.Tensor]
    head: torch.Tensor
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    fc_norm: bool
    norm_output: bool
    steps: int
    decay: float
    lk: str | None = None
    kl_scale: float = 1.0
    kl_decay: float = 1.0


@dataclass
class Doc:
    tokens: torch.Tensor
    mask: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor


def norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turn(vector, position, theta):
    """Half-split rotary as a product of complex numbers; angle tables in float32, as the draft keeps them."""
    half = vector.shape[-1] // 2
    frequency = 1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    angle = torch.tensor(float(position)) * frequency
    spin = torch.complex(angle.cos().double(), angle.sin().double())
    turned = torch.complex(vector[..., :half].contiguous(), vector[..., half:].contiguous()) * spin
    return torch.cat([turned.real, turned.imag], dim=-1)


def fused(case, row):
    thirds = row.chunk(3)
    if case.fc_norm:
        thirds = [norm(x, case.weights[f"fc_norm.{i}.weight"], case.eps) for i, x in enumerate(thirds)]
    return case.weights["fc.weight"] @ torch.cat(list(thirds))


def teacher(case, doc):
    """target_p, target_p_on_draft, token_ids, position_mask, loss_mask: one row each, K rows longer than T."""
    w = case.weights
    kept = [i for i, inside in enumerate(w["t2d"].tolist()) if inside]
    length = len(doc.tokens)
    mask = [bool(m) for m in doc.mask]
    mask[-1] = False
    p, p_on, ids, position = [], [], [], []
    for t in range(length + case.steps):
        if t < length:
            state = doc.last[t + 1] if t + 1 < length else torch.zeros_like(doc.last[0])
            z = case.head @ state
            p.append(torch.softmax(z[kept], 0))
            p_on.append(torch.exp(z[kept] - torch.logsumexp(z, 0)))
            ids.append(int(z.argmax()))
            position.append(mask[t] and bool(w["t2d"][ids[t]]))
        else:
            p.append(torch.full((len(kept),), 1 / len(kept), dtype=torch.float64))
            p_on.append(torch.zeros(len(kept), dtype=torch.float64))
            ids.append(0)
            position.append(False)
    return p, p_on, ids, position, mask + [False] * case.steps


def unroll(case, doc):
    """head input of every row at every step: [K][T] vectors."""
    w, length = case.weights, len(doc.tokens)
    group = case.heads // case.kv_heads
    hidden = [fused(case, doc.aux[t]) for t in range(length)]
    keys, values, outputs = [], [], []
    for k in range(case.steps):
        queries, keys_k, values_k = [], [], []
        for t in range(length):
            token = int(doc.tokens[t + 1 + k]) if t + 1 + k < length else 0
            e = w["embed_tokens.weight"][token]
            a = torch.cat(
                [
                    norm(e, w["midlayer.input_layernorm.weight"], case.eps),
                    norm(hidden[t], w["midlayer.hidden_norm.weight"], case.eps),
                ]
            )
            q, key, value = (w[f"midlayer.self_attn.{n}_proj.weight"] @ a for n in "qkv")
            queries.append(turn(q.view(case.heads, case.head_dim), t + k, case.theta))
            keys_k.append(turn(key.view(case.kv_heads, case.head_dim), t + k, case.theta))
            values_k.append(value.view(case.kv_heads, case.head_dim))
        keys.append(keys_k)
        values.append(values_k)
        fed, hidden_next = [], []
        for t in range(length):
            seen = [(0, j) for j in range(t + 1)] + [(i, t) for i in range(1, k + 1)]
            heads = []
            for h in range(case.heads):
                g = h // group
                s = torch.stack([queries[t][h] @ keys[i][j][g] for i, j in seen]) / math.sqrt(case.head_dim)
                p = torch.softmax(s, 0)
                heads.append(sum(p[n] * values[i][j][g] for n, (i, j) in enumerate(seen)))
            h1 = hidden[t] + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
            x = norm(h1, w["midlayer.post_attention_layernorm.weight"], case.eps)
            gate, up = (w[f"midlayer.mlp.{n}_proj.weight"] @ x for n in ("gate", "up"))
            out = h1 + w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
            normed = norm(out, w["norm.weight"], case.eps)
            fed.append(normed)
            hidden_next.append(normed if case.norm_output else out)
        hidden = hidden_next
        outputs.append(fed)
    return outputs


def lk_loss(case, ce, accepted):
    """LK's loss of one step: `ce` its normalised cross-entropy, `accepted` the acceptance of each position row."""
    if not accepted:
        return torch.zeros((), dtype=torch.float64)
    if case.lk == "alpha":
        logs = [torch.log(a) for a in accepted if a > 0]
        return -sum(logs, torch.zeros((), dtype=torch.float64)) / (len(accepted) + 1e-8)
    mean = sum(accepted) / (len(accepted) + 1e-8)
    w = case.kl_scale * math.exp(-case.kl_decay * mean.item())
    return w * ce + (1 - w) * (1 - mean)


def naive(case, docs, denominator):
    """loss and per-step sums: the step's loss, corrects, supervised, acceptance, positions. One micro-step."""
    w = case.weights
    loss = torch.zeros((), dtype=torch.float64)
    sums = torch.zeros(5, case.steps, dtype=torch.float64)
    accepted = [[] for _ in range(case.steps)]
    entropy = [torch.zeros((), dtype=torch.float64) for _ in range(case.steps)]
    for doc in docs:
        p, p_on, ids, position, mask = teacher(case, doc)
        outputs = unroll(case, doc)
        for k in range(case.steps):
            for t in range(len(doc.tokens)):
                if not mask[t + k]:
                    continue
                logits = w["lm_head.weight"] @ outputs[k][t]
                top = int(logits.argmax())
                sums[1, k] += int(top + int(w["d2t"][top]) == ids[t + k])
                sums[2, k] += 1
                if not position[t + k]:
                    continue
                ce = -(p[t + k] * torch.log_softmax(logits, 0)).sum()
                entropy[k] = entropy[k] + ce / denominator
                accepted[k].append(torch.minimum(p_on[t + k], torch.softmax(logits, 0)).sum())
                sums[3, k] += accepted[k][-1].item()
                sums[4, k] += 1
    for k in range(case.steps):
        step = entropy[k] if case.lk is None else lk_loss(case, entropy[k], accepted[k])
        loss = loss + case.decay**k * step
        sums[0, k] = step.item()
    return loss, sums
