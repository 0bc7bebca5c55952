"""In: options. Out: a toy draft, documents with features, and the same as the naive version takes them."""

from __future__ import annotations

from dataclasses import dataclass

import naive_eagle3
import numpy as np
import torch

from specforge.runtime.data.batch import Batch, Features, batch
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import Eagle3Draft, init_draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.settings import DraftSettings, Eagle3Settings

VOCAB, TARGET_HIDDEN = 29, 10


@dataclass(frozen=True)
class Options:
    draft_vocab: int = 19
    heads: int = 4
    kv_heads: int = 2
    fc_norm: bool = False
    norm_output: bool = False
    steps: int = 4
    reduction: str = "tokens"
    seed: int = 0
    lk: str | None = None
    kl_scale: float = 1.0
    kl_decay: float = 1.0
    sharp: float = 1.0


def settings(options: Options) -> DraftSettings:
    return DraftSettings(
        architecture="LlamaForCausalLMEagle3",
        hidden_size=12,
        intermediate_size=20,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=6,
        vocab_size=VOCAB,
        draft_vocab_size=options.draft_vocab,
        target_hidden_size=TARGET_HIDDEN,
        aux_layers=(0, 1, 2),
        rms_norm_eps=1e-5,
        hidden_act="silu",
        rope={"rope_type": "default", "rope_theta": 100.0},
        max_position_embeddings=64,
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
        dtype="float32",
        initializer_range=0.3,
        parameters=(),
    )


def draft(options: Options, dtype: torch.dtype = torch.float64) -> Eagle3Draft:
    model = init_draft(settings(options), options.seed)
    generator = torch.Generator().manual_seed(options.seed + 1)
    kept = torch.randperm(VOCAB, generator=generator)[: options.draft_vocab].sort().values
    model.d2t.copy_(kept - torch.arange(options.draft_vocab))
    model.t2d.fill_(False)[kept] = True
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
        model.lm_head.weight.mul_(options.sharp)
    return model.to(dtype)


def head(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(VOCAB, TARGET_HIDDEN, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(dtype)


def made(masks: list[list[int]], seed: int = 3) -> tuple[Pack, list[Features]]:
    """Documents with these loss masks; tokens and features are random. Features in float64."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    documents, features = [], []
    for index, mask in enumerate(masks):
        tokens = rng.integers(0, VOCAB, len(mask)).astype(np.int32)
        documents.append(Document(index, tokens, np.array(mask, bool)))
        aux = torch.randn(len(mask), 3 * TARGET_HIDDEN, generator=generator, dtype=torch.float64)
        features.append(Features(aux, torch.randn(len(mask), TARGET_HIDDEN, generator=generator, dtype=torch.float64)))
    return Pack(tuple(documents)), features


def random_masks(lengths: tuple[int, ...], share: float, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [(rng.random(length) < share).astype(int).tolist() for length in lengths]


def batched(pack: Pack, features: list[Features]) -> Batch:
    return batch(pack, features, torch.device("cpu"))


def step(model: Eagle3Draft, options: Options) -> Eagle3Step:
    kl = (options.kl_scale, options.kl_decay)
    eagle3 = Eagle3Settings(options.steps, 0.8, options.reduction, options.lk, *kl)
    return Eagle3Step(model, head(model.fc.weight.dtype), eagle3)


def naive(model: Eagle3Draft, options: Options, pack: Pack, features: list[Features], denominator: float):
    """(loss, sums, gradients by name) of the naive version for the weights of `model`."""
    weights = {n: v.detach().clone() for n, v in model.state_dict().items()}
    trainable = [n for n, p in model.named_parameters() if p.requires_grad]
    for name in weights:
        if weights[name].is_floating_point():
            weights[name] = weights[name].double().requires_grad_(name in trainable)
    case = naive_eagle3.Case(
        weights=weights,
        head=head(),
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=6,
        eps=1e-5,
        theta=100.0,
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
        steps=options.steps,
        decay=0.8,
        lk=options.lk,
        kl_scale=options.kl_scale,
        kl_decay=options.kl_decay,
    )
    docs = [
        naive_eagle3.Doc(torch.from_numpy(d.tokens), torch.from_numpy(d.loss_mask), f.aux_TC, f.last_TH)
        for d, f in zip(pack.documents, features)
    ]
    loss, sums = naive_eagle3.naive(case, docs, denominator)
    grads = torch.autograd.grad(loss, [weights[n] for n in trainable])
    return loss.detach(), sums, dict(zip(trainable, grads))
