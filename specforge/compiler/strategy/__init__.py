"""In: a strategy's node. Out: what the compiler knows of it: `STRATEGIES`, one entry per algorithm."""

from __future__ import annotations

from typing import Any

from specforge.compiler.facts import Facts
from specforge.compiler.strategy.eagle3 import Eagle3Knowledge
from specforge.dsl.node import BAD, ReadBadValue
from specforge.dsl.strategy import Eagle3

STRATEGIES: dict[type, Eagle3Knowledge] = {Eagle3: Eagle3Knowledge()}


def known(facts: Facts) -> Eagle3Knowledge:
    """That of the strategy which a recipe trains, or whose layers it records."""
    if facts.recipe.train is not None:
        return knowledge(facts.train.strategy)
    policy = facts.features.policy
    name = None if policy is None else policy.strategy
    return next((k for k in STRATEGIES.values() if k.name == name), STRATEGIES[Eagle3])


def knowledge(strategy: Any) -> Eagle3Knowledge:
    """The compiler's knowledge of a recipe's strategy; ReadBadValue where the strategy was refused."""
    if strategy is BAD:
        raise ReadBadValue
    return STRATEGIES[type(strategy)]
