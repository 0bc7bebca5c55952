"""In: the name of a model. Out: `Target`, the frozen model whose output a draft learns to foresee."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, flag, text


def _random_needs_config(target: Any) -> tuple[str, Fault] | None:
    if target.random_weights and target.config is None:
        fix = 'give the shape: Target("tiny", config="tiny.json", random_weights=True)'
        return "random_weights", Fault("is True, and random weights need a shape that no name can give", fix)
    return None


@node
class Target:
    """The target model.

    `name`: a local folder (relative to the recipe) or a model's name. A name's config.json is `config` (a path relative
    to the recipe), one shipped with specforge, or the one in the Hugging Face cache; compiling never uses a network.
    `random_weights`: draw weights from the run's seed instead of loading any; for tests and tiny runs.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("random-needs-config", "a target with random weights gives its config", _random_needs_config),
    )

    name: str = field(text("a folder or a model's name"))
    config: str | None = field(text("the path of a config.json"), default=None, optional=True)
    random_weights: bool = field(flag(), default=False)
