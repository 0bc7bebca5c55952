"""In: a strategy's node. Out: what the compiler knows of it: `STRATEGIES`, one entry per algorithm."""

from __future__ import annotations

from typing import Any

from specforge.compiler.strategy.eagle3 import Eagle3Knowledge
from specforge.dsl.node import BAD, ReadBadValue
from specforge.dsl.strategy import Eagle3

STRATEGIES: dict[type, Eagle3Knowledge] = {Eagle3: Eagle3Knowledge()}


def knowledge(strategy: Any) -> Eagle3Knowledge:
    """The compiler's knowledge of a recipe's strategy; ReadBadValue where the strategy was refused."""
    if strategy is BAD:
        raise ReadBadValue
    return STRATEGIES[type(strategy)]
