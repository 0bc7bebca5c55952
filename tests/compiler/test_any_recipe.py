"""In: recipes made of any valid parts. Out: plans; passes are pure; one broken part gives exactly its problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specforge.compiler import CompileError, compile, compile_graph, load, verify
from specforge.compiler.build import build
from specforge.compiler.devices import DEVICES
from specforge.compiler.passes import PIPELINE
from specforge.compiler.show import text
from specforge.plan import dump
from specforge.plan import load as load_plan

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
CONFIG = json.loads((REPOSITORY / "recipes" / "targets" / "tiny-llama.json").read_text())
LAYERS = CONFIG["num_hidden_layers"]
GPUS = sorted(set(DEVICES) - {"cpu"})


def examples(count: int) -> settings:
    """So many, the same every time."""
    quiet = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=quiet)


class Call:
    """A node as a recipe writes it: fields that are None are left out."""

    def __init__(self, node: str, /, **fields: Any) -> None:
        self.name, self.fields = node, {k: v for k, v in fields.items() if v is not None}

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.fields.items())})"


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def calls(node: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.builds(lambda **drawn: Call(node, **drawn), **fields)


counts = st.integers(1, 64)
flags = st.booleans()
rates = st.floats(1e-6, 1.0, allow_nan=False)


def sources(path: str) -> st.SearchStrategy[Call]:
    return calls(
        "Prompts",
        path=st.just(path),
        max_length=maybe(st.integers(2, 64)),
        max_rows=maybe(counts),
        strict=maybe(flags),
    )


policies = calls(
    "Policy",
    layers=maybe(st.lists(st.integers(0, LAYERS - 1), min_size=3, max_size=3, unique=True).map(sorted)),
    last_hidden=st.just(True),
    dtype=maybe(st.sampled_from(["float32", "bfloat16", "float16"])),
)
drafts = calls(
    "Draft",
    vocab_size=maybe(st.integers(1, CONFIG["vocab_size"])),
    intermediate_size=maybe(st.integers(1, 512)),
    num_heads=maybe(st.sampled_from([4, 8])),
    num_kv_heads=maybe(st.sampled_from([1, 2, 4])),
    head_dim=maybe(st.sampled_from([8, 16, 64])),
)


@st.composite
def strategies(draw: st.DrawFn) -> Call:
    lk = draw(maybe(st.sampled_from(["alpha", "lambda"])))
    scale = draw(maybe(st.floats(0, 4))) if lk == "lambda" else None
    return Call(
        "Eagle3",
        ttt_length=draw(maybe(st.integers(1, 32))),
        position_decay=draw(maybe(st.floats(0, 1))),
        reduction=draw(maybe(st.sampled_from(["tokens", "rows"]))),
        fc_norm=draw(maybe(flags)),
        norm_output=draw(maybe(flags)),
        lk=lk,
        kl_scale=scale,
    )


@st.composite
def trainings(draw: st.DrawFn) -> Call:
    packed = draw(flags)
    steps = draw(maybe(counts))
    return Call(
        "Train",
        features=Call(
            "Capture", source=draw(sources("rows.jsonl")), target=Call("Target", **TARGET), policy=draw(maybe(policies))
        ),
        strategy=draw(strategies()),
        draft=draw(maybe(drafts)),
        learning_rate=draw(maybe(rates)),
        schedule=draw(maybe(st.sampled_from(["cosine", "constant"]))),
        warmup_ratio=draw(maybe(st.floats(0, 1))),
        schedule_steps=draw(maybe(st.integers(steps, 1000))) if steps else None,
        batch_size=None if packed else draw(maybe(counts)),
        pack_tokens=draw(st.integers(2048, 8192)) if packed else None,
        packing=None if packed else draw(maybe(flags)),
        accumulation=draw(maybe(counts)),
        epochs=draw(maybe(counts)),
        max_steps=steps,
        weight_decay=draw(maybe(rates)),
        nonfinite_budget=draw(maybe(st.integers(0, 9))),
        log_every=draw(maybe(counts)),
    )


@st.composite
def topologies(draw: st.DrawFn) -> Call:
    device = draw(st.sampled_from(["cpu", *GPUS]))
    cpu = device == "cpu"
    free = list(draw(st.permutations(range(8))))

    def some(most: int) -> list[int] | None:
        return None if cpu or draw(flags) else [free.pop() for _ in range(draw(st.integers(1, most)))]

    dtype = draw(maybe(st.sampled_from(["float32", "bfloat16"])))
    transformers = {"batch_size": draw(maybe(counts)), "packed": draw(maybe(flags)), "dtype": dtype}
    ranks = draw(maybe(st.integers(1, 4))) if cpu else None
    if draw(flags):
        return Call("Colocated", engine=Call("Transformers", **transformers), device=device, gpus=some(4), ranks=ranks)
    number = draw(st.integers(1, 3))
    if draw(flags):
        servers = [Call("Transformers", gpus=some(1), **transformers) for _ in range(number)]
    else:
        servers = [Call("SGLang", gpus=some(2), dtype=dtype, args={"attention-backend": "fa3"}) for _ in range(number)]
    store = Call("SharedDir") if draw(flags) else Call("Mooncake", protocol=draw(maybe(st.just("rdma"))))
    trainers = None if draw(flags) else Call("Trainers", gpus=some(2), ranks=ranks)
    return Call("Disaggregated", servers=servers, store=store, trainers=trainers, device=device)


recipes = calls(
    "Recipe",
    name=st.just("any"),
    train=trainings(),
    topology=maybe(topologies()),
    evaluate=maybe(
        st.lists(calls("Evaluate", source=sources("heldout.jsonl"), batch_size=maybe(counts)), min_size=1, max_size=2)
    ),
    outputs=maybe(
        st.lists(
            st.sampled_from([Call("Checkpoint", keep=3), Call("Export", format="hf"), Call("Export", format="sglang")]),
            unique=True,
        )
    ),
    seed=maybe(st.integers(0, 99)),
)
TARGET = {"name": "tiny", "config": "tiny.json", "random_weights": True}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the recipe is written, beside what it reads."""
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4096}))
    row = '{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    (tmp_path / "heldout.jsonl").write_text(row * 2)
    return tmp_path / "recipe.py"


def written(file: Path, recipe: Call) -> Path:
    file.write_text(f"from specforge.dsl import *\n\nrecipe = {recipe!r}\n")
    return file


@examples(60)
@given(recipe=recipes)
def test_valid_parts_make_a_plan(file, recipe):
    plan = compile(load(written(file, recipe)))
    assert load_plan(dump(plan)) == plan
    assert all(len(line) <= 120 for line in text(plan).splitlines())


@examples(40)
@given(recipe=recipes)
def test_passes_are_pure_and_idempotent(file, recipe):
    loaded = load(written(file, recipe))
    _, facts = compile_graph(loaded)
    graph = build(loaded.recipe)
    for step in PIPELINE:
        before = (graph.nodes, graph.edges)
        made = step(graph, facts)
        assert (graph.nodes, graph.edges) == before
        assert step(made, facts) == made
        verify(made, step.__name__)
        graph = made


# node, field, a value that breaks the field's own rule, and the rule
BROKEN = [
    ("Train", "learning_rate", 0.0, "number-range"),
    ("Train", "epochs", 0, "whole-number"),
    ("Train", "schedule", "cosinus", "choice"),
    ("Train", "betas", [0.9], "betas"),
    ("Train", "accumulation", 1.5, "whole-number"),
    ("Train", "colour", "blue", "unknown-field"),
    ("Eagle3", "ttt_length", 99, "whole-number"),
    ("Eagle3", "fc_norm", "yes", "flag"),
    ("Draft", "head_dim", 7, "even-number"),
    ("Capture", "policy", 3, "node-kind"),
    ("Prompts", "path", "nowhere.jsonl", "file-not-found"),
    ("Target", "config", "nowhere.json", "target-not-found"),
    ("Recipe", "name", "a/b", "file-name"),
    ("Recipe", "evaluate", 5, "node-list"),
]


def calls_in(value: Any) -> list[Call]:
    if isinstance(value, list):
        return [call for item in value for call in calls_in(item)]
    if not isinstance(value, Call):
        return []
    return [value, *(call for held in value.fields.values() for call in calls_in(held))]


@pytest.mark.parametrize(("node", "field", "value", "code"), BROKEN, ids=[f"{n}.{f}" for n, f, _, _ in BROKEN])
@examples(8)
@given(recipe=recipes)
def test_one_broken_part_gives_exactly_its_problem(file, node, field, value, code, recipe):
    train = recipe.fields["train"]
    if node == "Draft":
        train.fields["draft"] = Call("Draft")
    call = next(c for c in calls_in(recipe) if c.name == node)
    before = dict(call.fields)
    try:
        call.fields[field] = value
        with pytest.raises(CompileError) as caught:
            compile(load(written(file, recipe)))
    finally:
        call.fields.clear()
        call.fields.update(before)
    assert [p.code for p in caught.value.problems] == [code]
