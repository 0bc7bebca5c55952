"""In: the options of one algorithm. Out: its node: `Eagle3`. An option that does not apply cannot be written."""

from __future__ import annotations

from specforge.dsl.capture import Policy
from specforge.dsl.node import field, node
from specforge.dsl.rule import choice, flag, number, whole
from specforge.dsl.target import Target


@node
class Eagle3:
    """EAGLE3 (arXiv 2503.01840): a one-layer draft trained over `ttt_length` of its own steps.

    `position_decay`: step k weighs decay ** k. `reduction`: "tokens" divides the loss by the supervised rows of the
    optimizer step; "rows" by all rows of the micro-step, as the public reference implementation does.
    `fc_norm`, `norm_output`: EAGLE3.1 (arXiv 2605.09992): a norm on each captured layer before fc; the normed output
    fed back to the next step.
    """

    ttt_length: int = field(whole(1, 32), default=7)
    position_decay: float = field(number(0.0, 1.0), default=0.8)
    reduction: str = field(choice("tokens", "rows"), default="tokens")
    fc_norm: bool = field(flag(), default=False)
    norm_output: bool = field(flag(), default=False)

    @staticmethod
    def policy(target: Target) -> Policy:
        """What EAGLE3 captures of `target`: layers 1, L//2 - 1 and L - 4, and the last hidden state."""
        return Policy(layers=None, last_hidden=True)


STRATEGIES = (Eagle3,)
