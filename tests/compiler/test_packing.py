"""In: recipes with `pack_tokens`. Out: the plan's batch arithmetic, estimates and texts of packs."""

import pytest

from specforge.compiler import compile, load
from specforge.compiler.show import text

pytestmark = pytest.mark.null


def packed(write, more=""):
    return compile(load(write(train=f"Capture(rows, target), Eagle3(), pack_tokens=100, accumulation=3{more}")))


def test_a_pack_is_measured_in_tokens(write):
    plan = packed(write)
    train = plan.op("train").settings
    assert (train.batch_documents, train.pack_tokens) == (None, 100)
    assert (plan.batch.micro_documents, plan.batch.step_documents) == (None, None)
    assert (plan.batch.pack_tokens, plan.batch.step_tokens_at_most) == (100, 300)
    assert plan.op("capture").settings.batch_documents == 3, "full documents of 32 tokens in a pack"


def test_what_needs_lengths_is_known_after_preparation(write):
    shown = text(packed(write))
    assert "a pack of at most 100 tokens × 3 micro-steps × 1 rank = at most 300 tokens an optimizer step" in shown
    assert "1 epoch; documents per step, steps per epoch: known after preparation" in shown
    assert "train.batch_size                      not used" in shown


def test_memory_is_of_the_packs_tokens(write):
    parts = {part.name: part.bytes for part in packed(write).memory}
    captured = 4 * 64 * 4  # three layers and the last hidden state of width 64, in float32
    assert parts["micro-step"] == 100 * captured
    assert parts["features"] == 300 * captured


def test_without_a_measure_a_micro_step_is_eight_documents(write):
    plan = compile(load(write()))
    assert plan.op("train").settings.batch_documents == plan.batch.micro_documents == 8


def test_an_override_packs_a_recipe_that_counts_documents(write):
    path = write(train="Capture(rows, target), Eagle3(), batch_size=4")
    plan = compile(load(path, ("train.batch_size=None", "train.pack_tokens=64")))
    assert plan.batch.pack_tokens == 64


def test_a_padded_batch_is_counted_and_not_computed(write):
    """The same plan but for what the loss divides by; where it divides by supervised rows, nothing at all changes."""
    train = "Capture(rows, target), Eagle3(reduction={}), batch_size=4, packing={}"
    flat, padded = (compile(load(write(train=train.format("'rows'", packing)))) for packing in (True, False))
    assert [plan.op("train").settings.eagle3.reduction for plan in (flat, padded)] == ["rows", "padded"]
    assert (padded.flops, padded.memory, padded.batch) == (flat.flops, flat.memory, flat.batch)
    assert "loss per row of the micro-step, padded to its longest document" in text(padded)
    tokens = compile(load(write(train=train.format("'tokens'", False))))
    assert tokens.op("train").settings.eagle3.reduction == "tokens"
    assert any(warning.startswith("packing=False changes nothing") for warning in tokens.warnings)
    assert not any(warning.startswith("packing=False") for warning in (*flat.warnings, *padded.warnings))
