"""In: nothing. Out: the tiny recipe and its plan and graph; a folder with a target's config and rows for recipes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specforge.compiler import Graph, Loaded, Plan, compile, compile_graph, load
from specforge.compiler.facts import Facts

REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "recipes" / "tiny_eagle3.py"
CONFIG = json.loads((REPOSITORY / "recipes" / "targets" / "tiny-llama.json").read_text())
ROW = '{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}\n'

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny() -> Loaded:
    """recipes/tiny_eagle3.py, loaded."""
    return load(TINY)


@pytest.fixture(scope="session")
def plan(tiny: Loaded) -> Plan:
    """Its plan."""
    return compile(tiny)


@pytest.fixture(scope="session")
def graph_and_facts(tiny: Loaded) -> tuple[Graph, Facts]:
    """Its finished graph, and the facts."""
    return compile_graph(tiny)


@pytest.fixture(scope="session")
def graph(graph_and_facts: tuple[Graph, Facts]) -> Graph:
    return graph_and_facts[0]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(train="...", rest="...", config={...}) makes a recipe file with what it needs, and gives its path.

    The recipe has `target` (tiny.json: the tiny Llama's config, with `config`'s changes) and `rows`.
    """

    def write(
        train: str = "Capture(rows, target), Eagle3()", rest: str = "", config: dict[str, Any] | None = None
    ) -> Path:
        (tmp_path / "tiny.json").write_text(json.dumps(CONFIG | (config or {})))
        (tmp_path / "rows.jsonl").write_text(ROW)
        (tmp_path / "heldout.jsonl").write_text(ROW * 2)
        path = tmp_path / "recipe.py"
        path.write_text(
            "from specforge.dsl import *\n\n"
            'target = Target("tiny", config="tiny.json", random_weights=True)\n'
            'rows = Prompts("rows.jsonl", max_length=32)\n'
            f'recipe = Recipe(name="x", train=Train({train}), {rest})\n'
        )
        return path

    return write
