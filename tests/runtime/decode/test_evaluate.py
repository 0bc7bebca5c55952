"""In: checkpoints of a toy run. Out: reports of real decoding, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import torch

from specforge.runtime.checkpoint.save import save
from specforge.runtime.checkpoint.saved_draft import read_draft
from specforge.runtime.checkpoint.state import Checkpoint, CheckpointError, State, draft_tensors
from specforge.runtime.decode.acceptance import Acceptance
from specforge.runtime.decode.agreement import Difference
from specforge.runtime.decode.choice import Sampling
from specforge.runtime.decode.evaluate import EvalRequest, evaluate, load_draft
from specforge.runtime.decode.report import EvalReport, Sample, Setup, Speed
from specforge.runtime.draft.eagle3 import init_draft
from specforge.runtime.target import Placement, load_target

pytestmark = pytest.mark.cpu
KEYS = {
    "schema",
    "checkpoint",
    "step",
    "untrained",
    "target",
    "prompts",
    "device",
    "dtype",
    "max_new_tokens",
    "draft_tokens",
    "batch_size",
    "sampling",
    "evaluated_prompts",
    "skipped_rows",
    "acceptance_length",
    "acceptance_per_position",
    "accepted_histogram",
    "verifies",
    "generated_tokens",
    "cut_tokens",
    "speculative_tokens_per_s",
    "plain_tokens_per_s",
    "speedup",
    "differing_prompts",
    "differing_not_near_tie",
    "differences",
    "samples",
}


@pytest.fixture
def run(toy, tmp_path) -> Path:
    """A run's folder with one checkpoint: a draft of another seed than the plan's, and a map of every second id."""
    plan = toy.plan()
    draft = init_draft(plan.op("train").settings.draft, seed=99)
    kept = torch.arange(40) * 2
    with torch.no_grad():
        draft.d2t.copy_(kept - torch.arange(40))
        draft.t2d.zero_()[kept] = True
    state = State(5, 0, 5, 10, 10, 1, 1, 0, None, None, plan.digest, {})
    save(
        tmp_path / "run" / "checkpoints", Checkpoint(plan, state, draft_tensors(draft, {}), {"step": torch.zeros(1)}), 2
    )
    return tmp_path / "run"


def _request(run: Path, **changes) -> EvalRequest:
    prompts = run.parent / "heldout.jsonl"
    return EvalRequest(run, prompts, max_new_tokens=12, draft_tokens=3, batch_size=2, device="cpu", **changes)


def test_a_report_counts_every_prompt_and_its_json_has_these_keys(run):
    report = evaluate(_request(run))
    body = json.loads(json.dumps(report.json(), allow_nan=False))
    assert set(body) == KEYS
    assert (body["schema"], body["step"], body["evaluated_prompts"], body["dtype"]) == (1, 5, 5, "float32")
    assert body["differing_prompts"] == 0, "float32 on a CPU: output must be the target's own"
    assert body["generated_tokens"] == sum(len(s["tokens"]) for s in body["samples"])
    assert body["verifies"] == sum(s["verifies"] for s in body["samples"]) == sum(body["accepted_histogram"])
    assert body["acceptance_length"] == pytest.approx(1 + sum(body["acceptance_per_position"]))
    assert body["speculative_tokens_per_s"] > 0 < body["plain_tokens_per_s"]
    text = report.text()
    assert "tokens per verify, bonus token counted" in text
    assert "equals plain decoding's on all 5 prompts" in text


def test_untrained_is_the_plans_initial_draft_with_the_checkpoints_map(run):
    saved = read_draft(run)
    plan = saved.checkpoint.plan
    target = load_target(plan.target, Path(plan.base), Placement("cpu", "float32"))
    initial, trained = load_draft(saved, target, untrained=True), load_draft(saved, target)
    assert torch.equal(initial.fc.weight, init_draft(saved.train.draft, plan.seed).fc.weight)
    assert torch.equal(trained.fc.weight, saved.checkpoint.draft["fc.weight"])
    for draft in (initial, trained):
        assert torch.equal(draft.d2t, saved.checkpoint.draft["d2t"])
        assert torch.equal(draft.t2d, saved.checkpoint.draft["t2d"])
        assert torch.equal(draft.embed_tokens.weight, target.embedding_VH)
    report = evaluate(_request(run, untrained=True, limit=2))
    assert (report.setup.untrained, report.setup.step, report.acceptance.prompts) == (True, 0, 2)
    assert "untrained draft of" in report.text()


def test_bfloat16_casts_the_draft_too_and_judges_differences(run):
    report = evaluate(_request(run, dtype="bfloat16"))
    assert report.setup.dtype == "bfloat16"
    assert report.json()["differing_not_near_tie"] == sum(not d.near_tie for d in report.differences)


def test_a_missing_checkpoint_and_numbers_below_one_are_refused(tmp_path, run):
    with pytest.raises(CheckpointError, match="does not exist"):
        evaluate(attrs.evolve(_request(run), checkpoint=tmp_path / "nowhere"))
    for name in ("max_new_tokens", "draft_tokens", "batch_size", "limit"):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            attrs.evolve(_request(run), **{name: 0})


def test_prompts_that_are_no_file_are_told_before_anything_is_loaded(run, tmp_path):
    request = attrs.evolve(_request(run), checkpoint=tmp_path / "nowhere")
    for prompts, what in (("nope", "there is no such file"), ("run", "is a folder")):
        with pytest.raises(ValueError, match=f"--prompts {tmp_path / prompts}: {what}; give a file of chats or of"):
            evaluate(attrs.evolve(request, prompts=tmp_path / prompts))


def test_a_gpu_that_is_not_there_is_told(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device is 'cuda', and torch sees no GPU here; .* give --device cpu"):
        evaluate(attrs.evolve(_request(run), device="cuda"))


def test_a_device_without_memory_is_told(run, monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    monkeypatch.setattr(torch.nn.Module, "to", exhausted)
    with pytest.raises(ValueError, match=r"out of memory while .*run was evaluated: .*20.00 MiB.\nLower --batch-size"):
        evaluate(_request(run))


def test_the_text_of_a_report_names_differences_and_skipped_rows():
    setup = Setup("runs/x", 100, False, "toy", "dev.jsonl", "cuda", "bfloat16", 128, 2, 64)
    report = EvalReport(
        setup=setup,
        acceptance=Acceptance((6, 3, 1), 2, 17, 0),
        speculative=Speed(17, 2.0),
        plain=Speed(17, 3.4),
        differences=(Difference(0, 4, 1.0, 0.0, True), Difference(1, 2, 5.0, 3.0, False)),
        skipped={"empty row": 3},
        samples=(Sample(3, 9, (1, 2), 5, "hello\nthere"), Sample(7, 9, (1, 2), 5, "bye")),
    )
    text = report.text()
    for line in (
        "1.500 tokens per verify, bonus token counted (at most 3; 10 verifies, 17 tokens)",
        "1: 40.0%  2: 10.0%  (share of verifies that accept the first i drafts)",
        "8.5 speculative, 5.0 plain, 1.70x",
        "3 rows: empty row",
        "differs from plain decoding's on 2 of 2 prompts: 1 at near-ties (top-2 gap under 2 ulps), 1 elsewhere",
        "row 3, token 4: near-tie, top-2 gap 1.0 ulps plain",
        "row 7, token 2: NOT a near-tie, top-2 gap 5.0 ulps plain, 3.0 ulps speculative",
        "row 3 says         hello there",
    ):
        assert line in text
    assert report.unexplained == 1


def test_sampled_output_says_how_it_was_drawn_and_compares_nothing(run):
    report = evaluate(_request(run, sampling=Sampling(1.0, top_p=0.9, seed=4)))
    assert report.json()["sampling"] == {"temperature": 1.0, "top_p": 0.9, "seed": 4}
    assert report.differences == ()
    assert "temperature 1, top-p 0.9, seed 4: distributed as the target's own" in report.text()
    again = evaluate(_request(run, sampling=Sampling(1.0, top_p=0.9, seed=4)))
    assert again.samples == report.samples != evaluate(_request(run, sampling=Sampling(1.0, seed=5))).samples
