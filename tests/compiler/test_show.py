"""In: plans. Out: a text that has every section, fits a terminal, and holds the plan's figures."""

import attrs
import pytest

from specforge.compiler import compile, load
from specforge.compiler.columns import flops, size
from specforge.compiler.show import text
from specforge.plan import Origin

pytestmark = pytest.mark.null
SECTIONS = (
    "processes",
    "operations, in order",
    "batch",
    "learning rate",
    "memory per rank",
    "FLOPs per micro-step, all rows supervised",
    "kernels",
    "files",
    "export keys",
    "where values came from",
)
WIDTH = 120


def sections(shown: str) -> dict[str, list[str]]:
    """The text by its titles."""
    found: dict[str, list[str]] = {"": []}
    for row in shown.splitlines():
        if row and not row.startswith(" ") and found[""] and row in (*SECTIONS, "warnings"):
            found[row] = []
        else:
            found[list(found)[-1]].append(row)
    return found


def test_every_section_is_there_in_order(plan):
    assert tuple(sections(text(plan))) == ("", *SECTIONS)
    assert all(any(row.strip() for row in rows) for rows in sections(text(plan)).values())


def test_no_line_is_wider_than_a_terminal(write):
    long = "a/very/long/path/" * 8 + "rows.jsonl"
    path = write(rest='topology=Colocated(device="H200"), outputs=[Export("hf")]')
    (path.parent / long).parent.mkdir(parents=True)
    (path.parent / long).write_text((path.parent / "rows.jsonl").read_text())
    path.write_text(path.read_text().replace("rows.jsonl", long).replace('name="x"', f'name="{"x" * 100}"'))
    plan = compile(load(path))
    plan = attrs.evolve(
        plan, origins=(*plan.origins, Origin("train.zzz", "[" + "1, " * 90 + "]", "derived: " + "w" * 99))
    )
    wide = [row for row in text(plan).splitlines() if len(row) > WIDTH]
    assert not wide


def test_the_text_is_the_same_every_time(plan):
    assert text(plan) == text(plan)


def test_operations_are_shown_with_their_typed_edges(plan):
    rows = "\n".join(sections(text(plan))["operations, in order"])
    assert "-> aux [T, 192] float32  layers 1, 3, 4  pre-norm  768 B/token, 48.0 KiB for 64 tokens" in rows
    assert "<- capture.last_hidden" in rows
    assert all(f"{op.name}: " in rows for op in plan.ops())


def test_memory_adds_up_and_gives_a_verdict(write):
    h200 = compile(load(write(rest='topology=Colocated(device="H200")')))
    rows = sections(text(h200))["memory per rank"]
    assert all(any(part.name in row for row in rows) for part in h200.memory)
    total = size(sum(part.bytes for part in h200.memory))
    assert rows[-2].strip() == f"total {total}; fits: 0% of H200's 140.0 GiB"
    full = "Capture(rows, target), Eagle3(), batch_size=100_000_000"
    shown = text(compile(load(write(full, rest='topology=Colocated(device="H200")'))))
    assert "DOES NOT FIT" in shown
    assert "warnings" in sections(shown)


def test_origins_name_line_default_override_and_derivation(write):
    shown = sections(text(compile(load(write(), ("train.epochs=3",)))))["where values came from"]
    for path, source in {
        "train.epochs": "override",
        "train.features.source.max_length": "line 4",
        "train.learning_rate": "default",
        "train.precision": "derived: the device cpu",
    }.items():
        assert [row for row in shown if row.split()[:1] == [path] and row.endswith(source)]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (3 * 2**40, "3.00 TiB")],
)
def test_sizes_are_binary(count, shown):
    assert size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(10, "10.0 FLOP"), (2_500_000, "2.5 MFLOP"), (3e12, "3.00 TFLOP")])
def test_flops_are_decimal(count, shown):
    assert flops(count) == shown
