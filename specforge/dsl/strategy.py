"""In: the options of one algorithm. Out: its node: `Eagle3`. An option that does not apply cannot be written."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.capture import Policy
from specforge.dsl.node import BAD, NodeRule, ReadBadValue, field, node
from specforge.dsl.rule import Fault, choice, flag, number, whole
from specforge.dsl.target import Target


def _kl_of_lambda(eagle3: Any) -> tuple[str, Fault] | None:
    if eagle3.lk is BAD:
        raise ReadBadValue
    for name in ("kl_scale", "kl_decay"):
        value = getattr(eagle3, name)
        if eagle3.lk != "lambda" and value is not BAD and value != 1.0:
            what = f"is {value:g}, and only lk='lambda' reads it; lk is {eagle3.lk!r}"
            return name, Fault(what, f"set lk='lambda', or leave {name} out")
    return None


@node
class Eagle3:
    """EAGLE3 (arXiv 2503.01840): a one-layer draft trained over `ttt_length` of its own steps.

    `position_decay`: step k weighs decay ** k. `reduction`: "tokens" divides the loss by the supervised rows of the
    optimizer step; "rows" by all rows of the micro-step, as the public reference implementation does (with
    Train(packing=False) by those of its padded batch).
    `fc_norm`, `norm_output`: EAGLE3.1 (arXiv 2605.09992): a norm on each captured layer before fc; the normed output
    fed back to the next step.
    `lk`: a loss of the acceptance rate (arXiv 2602.23881) in place of cross-entropy (None). "alpha": the mean negative
    log acceptance. "lambda": cross-entropy times w plus one minus the mean acceptance times 1 - w, where
    w = kl_scale * exp(-kl_decay * mean acceptance); it costs one more pass of the draft's head.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("kl-without-lambda", "kl_scale and kl_decay are given only with lk='lambda'", _kl_of_lambda),
    )

    ttt_length: int = field(whole(1, 32), default=7)
    position_decay: float = field(number(0.0, 1.0), default=0.8)
    reduction: str = field(choice("tokens", "rows"), default="tokens")
    fc_norm: bool = field(flag(), default=False)
    norm_output: bool = field(flag(), default=False)
    lk: str | None = field(choice("alpha", "lambda"), default=None, optional=True)
    kl_scale: float = field(number(0.0), default=1.0)
    kl_decay: float = field(number(0.0), default=1.0)

    @staticmethod
    def policy(target: Target) -> Policy:
        """What EAGLE3 captures of `target`: layers 1, L//2 - 1 and L - 4, and the last hidden state."""
        return Policy(layers=None, last_hidden=True, strategy="eagle3")


STRATEGIES = (Eagle3,)
