"""In: features, a strategy and a draft. Out: `Train`: the optimizer step, its schedule and its precision."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.capture import Capture
from specforge.dsl.draft import Draft
from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, choice, flag, number, pair_of_betas, whole
from specforge.dsl.rule import node as a_node
from specforge.dsl.strategy import STRATEGIES, Eagle3


def _horizon(train: Any) -> tuple[str, Fault] | None:
    steps, horizon = train.max_steps, train.schedule_steps
    if steps is not None and horizon is not None and horizon < steps and train.schedule == "cosine":
        what = f"is {horizon}, and the cosine would be at 0 for the last {steps - horizon} of max_steps={steps}"
        return "schedule_steps", Fault(what, f"set schedule_steps={steps} or more, or leave it out")
    return None


def _one_measure(train: Any) -> tuple[str, Fault] | None:
    if train.batch_size is not None and train.pack_tokens is not None:
        what = f"is {train.pack_tokens}, and batch_size={train.batch_size} already says what makes a micro-step"
        return "pack_tokens", Fault(what, "leave batch_size out, or write batch_size=None, to fill packs by tokens")
    if train.packing is False and train.pack_tokens is not None:
        what = f"is {train.pack_tokens}, and packing=False makes micro-steps of batch_size documents"
        return "pack_tokens", Fault(what, "leave packing=False out to fill packs by tokens, or write batch_size=...")
    return None


@node
class Train:
    """Train a draft on captured features.

    A micro-step is a pack of `batch_size` documents (None: 8), or of as many documents as fit `pack_tokens` tokens.
    Either way they lie end to end, unpadded, and nothing crosses a document. `packing=False` counts the padding that a
    [documents, longest] batch would have, and computes none: Eagle3(reduction="rows") divides by it. `accumulation`:
    micro-steps of an optimizer step, on every rank. `epochs` passes over the data, at most `max_steps` optimizer steps.
    `schedule`: "cosine" or "constant" after a linear warm-up over `warmup_ratio` of `schedule_steps` (None: the number
    of steps that will run). `precision`: dtype of the draft's compute weights, None: float32 on a CPU, else bfloat16;
    masters are float32 always. `nonfinite_budget`: optimizer steps with a non-finite loss that are skipped before the
    run stops. `kernels`: of the hot parts of a step, "triton" or "torch" for all; None: for each what is best on the
    device, which the plan shows with its reason. `gradient_checkpointing`: the backward pass computes each TTT step's
    MLP again, which the forward pass then does not keep.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("horizon-too-short", "a cosine does not end before the run does", _horizon),
        NodeRule("pack-or-batch", "a micro-step is measured in documents or in tokens, not in both", _one_measure),
    )

    features: Capture = field(a_node(Capture, why="captured features: Capture(chats, target)"))
    strategy: Eagle3 = field(a_node(*STRATEGIES, why="an algorithm: Eagle3()"))
    draft: Draft = field(a_node(Draft), default=Draft())
    learning_rate: float = field(number(0.0, above=True), default=1e-4)
    schedule: str = field(choice("cosine", "constant"), default="cosine")
    warmup_ratio: float = field(number(0.0, 1.0), default=0.015)
    schedule_steps: int | None = field(whole(), default=None, optional=True)
    batch_size: int | None = field(whole(), default=None, optional=True)
    accumulation: int = field(whole(), default=1)
    epochs: int = field(whole(), default=1)
    max_steps: int | None = field(whole(), default=None, optional=True)
    max_grad_norm: float = field(number(0.0, above=True), default=0.5)
    betas: tuple[float, float] = field(pair_of_betas(), default=(0.9, 0.999))
    eps: float = field(number(0.0, above=True), default=1e-8)
    weight_decay: float = field(number(0.0), default=0.0)
    precision: str | None = field(choice("float32", "bfloat16"), default=None, optional=True)
    nonfinite_budget: int = field(whole(0), default=0)
    log_every: int = field(whole(), default=10)
    pack_tokens: int | None = field(whole(), default=None, optional=True)
    packing: bool = field(flag(), default=True)
    kernels: str | None = field(choice("triton", "torch"), default=None, optional=True)
    gradient_checkpointing: bool = field(flag(), default=False)
