"""In: the tiny plan's memory and FLOPs. Out: the exact parts equal real tensors' bytes; FLOPs, torch's own counter."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from specforge.compiler import Plan, compile, load
from specforge.dsl.feature import DTYPE_BYTES
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.batch import Batch, batch
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import Eagle3Draft, init_draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.target import Placement, TargetModel, load_target
from specforge.runtime.train.optimizer import Optimizer

pytestmark = pytest.mark.cpu
OPTIONS = {
    "float32": "Capture(rows, target), Eagle3(ttt_length=4), draft=Draft(vocab_size=128), batch_size=4",
    "bfloat16": (
        "Capture(rows, target, Policy(dtype='bfloat16')), Eagle3(ttt_length=3, fc_norm=True), "
        "batch_size=2, precision='bfloat16'"
    ),
    "alpha": "Capture(rows, target), Eagle3(ttt_length=3, lk='alpha'), batch_size=2",
    "lambda": "Capture(rows, target), Eagle3(ttt_length=3, lk='lambda'), batch_size=2",
    "recompute": "Capture(rows, target), Eagle3(ttt_length=4), batch_size=2, gradient_checkpointing=True",
}


class Step:
    """One micro-step of full documents with every row supervised, as the plan describes it, with real tensors."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.settings = plan, plan.op("train").settings
        self.length = plan.op("prompts").settings.max_length
        self.target: TargetModel = load_target(
            plan.target, Path(plan.base), Placement("cpu", plan.roles[0].target_dtype)
        )
        self.engine = TransformersEngine(self.target, plan.op("capture").settings)
        self.draft: Eagle3Draft = init_draft(self.settings.draft, plan.seed)
        self.optimizer = Optimizer(self.draft, self.settings)
        self.pack = Pack(tuple(self._document(i) for i in range(plan.batch.micro_documents)))

    def _document(self, index: int) -> Document:
        tokens = np.random.default_rng(index).integers(0, 120, self.length, dtype=np.int32)
        return Document(index, tokens, np.ones(self.length, dtype=bool))

    def capture(self) -> Batch:
        return batch(self.pack, self.engine.capture(self.pack.documents), torch.device("cpu"))

    def train(self, captured: Batch) -> None:
        step = Eagle3Step(self.draft, self.target.head_VH, self.settings.eagle3)
        step(captured, self.pack.supervised).loss.backward()


def test_an_evaluation_of_more_documents_than_a_micro_step_takes_memory(write):
    def memory(documents: int) -> dict[str, int]:
        held = f"evaluate=[Evaluate(Prompts('held.jsonl', max_length=32), batch_size={documents})]"
        (write().parent / "held.jsonl").write_text('{"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}\n')
        return {p.name: p.bytes for p in compile(load(write(OPTIONS["float32"], held))).memory}

    small, large, larger = map(memory, (4, 400, 800))
    assert "evaluation" not in small
    # features of four widths of 64, the teacher's 128 logits and what the head reads, in float32
    assert larger["evaluation"] - large["evaluation"] == 400 * 32 * (4 * 64 + 128 + 4 * 64) * 4


@pytest.fixture(params=OPTIONS)
def step(write, request) -> Step:
    """Captured padded: the counter sees the target's own attention, which the estimate counts."""
    padded = "topology=Colocated(engine=Transformers(packed=False))"
    return Step(compile(load(write(OPTIONS[request.param], padded))))


def size(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def test_the_exact_parts_of_memory_are_the_tensors_bytes(step):
    parts = {part.name: part.bytes for part in step.plan.memory if part.exact}
    features = step.engine.capture(step.pack.documents)
    captured = batch(step.pack, features, torch.device("cpu"))
    assert parts.pop("target weights") == size(step.target.model.parameters())
    assert parts.pop("features") == size(t for f in features for t in (f.aux_TC, f.last_TH))
    assert parts.pop("micro-step") == size([captured.aux_RC, captured.last_RH])
    assert parts.pop("draft weights") == size(p for p in step.draft.parameters() if p.requires_grad)
    embedding = step.draft.embed_tokens.weight
    assert parts.pop("draft frozen") == size([embedding, step.draft.d2t, step.draft.t2d])
    copied = step.optimizer.masters.values() if step.settings.precision != "float32" else ()
    assert parts.pop("float32 masters") == size(copied)

    step.train(captured)
    gradients = size(p.grad for p in step.draft.parameters() if p.requires_grad)
    step.optimizer.accumulate()
    assert parts.pop("gradients") == gradients + size(m.grad for m in copied)
    step.optimizer.step(1e-3, torch.tensor(True))
    moments = [t for name, t in step.optimizer.state().items() if not name.startswith("step/")]
    assert parts.pop("AdamW moments") == size(moments)
    assert not parts


def test_flops_are_those_that_torch_counts(step):
    computed = {part.name: part.computed for part in step.plan.flops}
    step.target.model.set_attn_implementation("eager")  # torch's counter does not know the fused attention of a CPU
    with FlopCounterMode(display=False) as counter:
        captured = step.capture()
    assert math.isclose(counter.get_total_flops(), computed["target prefill"], rel_tol=0.01)
    with FlopCounterMode(display=False) as counter:
        step.train(captured)
    draft = sum(computed.values()) - computed["target prefill"]
    assert math.isclose(counter.get_total_flops(), draft, rel_tol=0.01)


def test_activations_are_what_autograd_keeps(step):
    """By storage, without weights and features; small vectors and the head's gradient are counted here, not there."""
    captured = step.capture()
    given = {t.untyped_storage().data_ptr() for t in (*step.draft.parameters(), captured.aux_RC, captured.last_RH)}
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    step.draft.to(getattr(torch, step.settings.draft.dtype))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Eagle3Step(step.draft, step.target.head_VH, step.settings.eagle3)(captured, step.pack.supervised)
    draft = step.settings.draft
    head = draft.draft_vocab_size * draft.hidden_size * DTYPE_BYTES[draft.dtype]
    steps, rows = step.settings.eagle3.ttt_length, captured.pack.rows
    tables = 8 * captured.pack.supervised * steps * (draft.head_dim // 2)
    # what the head reads is there while the loss is computed, and nothing keeps it
    read = steps * rows * draft.hidden_size * DTYPE_BYTES[draft.dtype]
    estimate = tables - read + next(part.bytes for part in step.plan.memory if part.name == "activations")
    low = 0.8 if step.settings.eagle3.recompute else 0.95  # what is computed again is there one step at a time
    assert low * estimate < sum(kept.values()) - head < 1.05 * estimate


def test_what_is_needed_is_never_more_than_what_is_computed(plan):
    assert all(0 < part.needed <= part.computed for part in plan.flops)
