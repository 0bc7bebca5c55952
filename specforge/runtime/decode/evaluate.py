"""In: a checkpoint and a file of prompts. Out: an `EvalReport` of real speculative decoding: `specforge eval`."""

from __future__ import annotations

from pathlib import Path

import attrs
import torch

from specforge.runtime.checkpoint.load import restore
from specforge.runtime.checkpoint.saved_draft import SavedDraft, read_draft
from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.decode.agreement import Difference, compare
from specforge.runtime.decode.choice import Sampled, Sampling
from specforge.runtime.decode.eagle3_proposer import Eagle3Proposer
from specforge.runtime.decode.prompts import Prompt, PromptFile, read_prompts
from specforge.runtime.decode.report import EvalReport, Sample, Setup, Speed
from specforge.runtime.decode.speculative import GREEDY, Decoded, Limits, decode
from specforge.runtime.draft.eagle3 import Eagle3Draft
from specforge.runtime.draft.warm_start import first_draft
from specforge.runtime.memory import memory
from specforge.runtime.target import Placement, TargetModel, load_target, load_tokenizer
from specforge.settings import SourceSettings

WARM_UP_TOKENS = 8


@attrs.frozen
class EvalRequest:
    """What to evaluate. `checkpoint`: a checkpoint's or a run's folder; `prompts`: a file, see `read_prompts`.

    `limit`: rows read of the file, None for all. `untrained`: the run's initial draft instead (its seed, with the
    checkpoint's vocabulary map). `device`: None for a GPU where there is one. `dtype`: None for float32 on a CPU,
    elsewhere what the plan gives the target. `sampling`: None decodes greedily.
    """

    checkpoint: Path
    prompts: Path
    max_new_tokens: int = 128
    draft_tokens: int = 5
    batch_size: int = 8
    limit: int | None = None
    untrained: bool = False
    device: str | None = None
    dtype: str | None = None
    sampling: Sampling | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("max_new_tokens", "draft_tokens", "batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


@attrs.frozen(eq=False)
class Pair:
    """A target and a draft for it, both ready to decode. `sampling`: None decodes greedily."""

    target: TargetModel
    draft: Eagle3Draft
    limits: Limits
    sampling: Sampling | None


def evaluate(request: EvalRequest) -> EvalReport:
    """Decode every prompt twice, speculatively and plainly; compare the outputs where they are greedy.

    ValueError (and its family) where the checkpoint, the target's weights or the prompts cannot be used, and where
    the device runs out of memory.
    """
    lower = f"--batch-size (now {request.batch_size}) or --max-new-tokens (now {request.max_new_tokens})"
    with memory(f"{request.checkpoint} was evaluated", f"Lower {lower}, or give --device cpu"):
        return _evaluate(request)


def _evaluate(request: EvalRequest) -> EvalReport:
    if not request.prompts.is_file():
        what = "is a folder" if request.prompts.is_dir() else "there is no such file"
        raise ValueError(f"--prompts {request.prompts}: {what}; give a file of chats or of tokenised rows")
    saved = read_draft(request.checkpoint)
    plan = saved.checkpoint.plan
    placement = _placement(request, saved)
    target = load_target(plan.target, saved.base, placement)
    limits = Limits(request.max_new_tokens, _end_tokens(target), plan.target.geometry.max_position_embeddings)
    pair = Pair(target, load_draft(saved, target, request.untrained), limits, request.sampling)
    file = PromptFile(request.prompts, request.limit, plan.target.geometry.vocab_size, limits.max_positions)
    prompts, skipped = read_prompts(file, lambda: _chat_template(saved))

    if target.device.type != "cpu":
        warm = attrs.evolve(limits, max_new_tokens=min(WARM_UP_TOKENS, limits.max_new_tokens))
        _decode_both(attrs.evolve(pair, limits=warm), prompts[: request.batch_size], request.draft_tokens)
    decoded = [
        _decode_both(_seeded(pair, first), prompts[first : first + request.batch_size], request.draft_tokens)
        for first in range(0, len(prompts), request.batch_size)
    ]

    setup = Setup(
        checkpoint=str(saved.folder),
        step=0 if request.untrained else saved.checkpoint.state.step,
        untrained=request.untrained,
        target=plan.target.name,
        prompts=str(request.prompts),
        device=placement.device,
        dtype=placement.dtype,
        max_new_tokens=request.max_new_tokens,
        draft_tokens=request.draft_tokens,
        batch_size=request.batch_size,
        sampling=request.sampling,
    )
    plain, speculative = [one for one, _ in decoded], [other for _, other in decoded]
    return EvalReport(
        setup=setup,
        acceptance=sum((d.acceptance for d in speculative[1:]), start=speculative[0].acceptance),
        speculative=_speed(speculative),
        plain=_speed(plain),
        differences=_differences(plain, speculative, placement.dtype) if request.sampling is None else (),
        skipped=skipped,
        samples=_samples(prompts, speculative, saved),
    )


def load_draft(saved: SavedDraft, target: TargetModel, untrained: bool = False) -> Eagle3Draft:
    """The checkpoint's draft in the target's dtype, on its device, with its embedding; or the run's initial draft."""
    tensors = saved.checkpoint.draft
    settings = saved.train.draft if untrained else attrs.evolve(saved.train.draft, weights=None)
    draft = first_draft(settings, saved.checkpoint.plan.seed, saved.base)
    with torch.no_grad():
        if untrained:
            draft.d2t.copy_(tensors["d2t"])
            draft.t2d.copy_(tensors["t2d"])
        else:
            restore(saved.checkpoint, draft, saved.folder)
        if not draft.embed_tokens.weight.requires_grad:
            draft.embed_tokens.weight.copy_(target.embedding_VH)
    return draft.to(device=target.device, dtype=target.head_VH.dtype).eval()


def _decode_both(pair: Pair, prompts: tuple[Prompt, ...], draft_tokens: int) -> tuple[Decoded, Decoded]:
    """The batch decoded plainly, then speculatively."""
    tokens = [p.tokens for p in prompts]
    layers, device = pair.draft.settings.aux_layers, pair.target.device
    if pair.sampling is None:
        sampled, choices = None, (GREEDY, GREEDY)
    else:
        sampled = Sampled(pair.sampling, device)
        choices = (Sampled(pair.sampling, device), sampled)
    plain = decode(pair.target, layers, None, tokens, pair.limits, choices[0])
    proposer = Eagle3Proposer(pair.draft, draft_tokens, len(prompts), sampled)
    return plain, decode(pair.target, layers, proposer, tokens, pair.limits, choices[1])


def _seeded(pair: Pair, first: int) -> Pair:
    """Every batch draws its own stream, a function of the seed and its first prompt."""
    sampling = pair.sampling
    return pair if sampling is None else attrs.evolve(pair, sampling=attrs.evolve(sampling, seed=sampling.seed + first))


def _placement(request: EvalRequest, saved: SavedDraft) -> Placement:
    device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, and torch sees no GPU here; leave --device out, or give --device cpu")
    planned = saved.checkpoint.plan.roles[0].target_dtype
    return Placement(device, request.dtype or ("float32" if device == "cpu" else planned))


def _end_tokens(target: TargetModel) -> tuple[int, ...]:
    """End tokens of the config and of generation_config.json, which for some chat models names the end of a turn."""
    generation = getattr(target.model, "generation_config", None)
    more = getattr(generation, "eos_token_id", None)
    listed = more if isinstance(more, list) else [] if more is None else [more]
    return tuple(sorted({*target.settings.geometry.eos_token_ids, *listed}))


def _chat_template(saved: SavedDraft) -> ChatTemplate:
    """The template that the run trained with: its source's own, else the tokenizer's."""
    plan = saved.checkpoint.plan
    sources = [part for op in plan.ops() if isinstance(op.settings, SourceSettings) for part in op.settings.files]
    override = next((part.chat_template for part in sources if part.kind == "conversations"), None)
    return ChatTemplate(load_tokenizer(plan.target, saved.base), override)


def _speed(decoded: list[Decoded]) -> Speed:
    return Speed(sum(d.acceptance.generated_tokens for d in decoded), sum(d.seconds for d in decoded))


def _differences(plain: list[Decoded], speculative: list[Decoded], dtype: str) -> tuple[Difference, ...]:
    found, first = [], 0
    for one, other in zip(plain, speculative):
        found += [attrs.evolve(d, prompt=first + d.prompt) for d in compare(one, other, dtype)]
        first += len(one.tokens)
    return tuple(found)


def _samples(prompts: tuple[Prompt, ...], decoded: list[Decoded], saved: SavedDraft) -> tuple[Sample, ...]:
    plan = saved.checkpoint.plan
    tokenizer = load_tokenizer(plan.target, saved.base) if plan.target.random_seed is None else None
    rows = [(tokens, verifies) for d in decoded for tokens, verifies in zip(d.tokens, d.verifies)]
    return tuple(
        Sample(
            row=prompt.row,
            prompt_tokens=len(prompt.tokens),
            tokens=tokens,
            verifies=verifies,
            text=tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer is not None else None,
        )
        for prompt, (tokens, verifies) in zip(prompts, rows)
    )
