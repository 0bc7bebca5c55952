"""In: what an evaluation measured. Out: `EvalReport`, as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from specforge.runtime.data.report import counted
from specforge.runtime.decode.acceptance import Acceptance
from specforge.runtime.decode.agreement import NEAR_TIE_ULPS, Difference
from specforge.runtime.decode.choice import Sampling

SCHEMA = 1
SHOWN_CHARACTERS = 300
LISTED_DIFFERENCES = 10


@attrs.frozen
class Speed:
    """Generated tokens and wall seconds, prefill and proposals included."""

    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@attrs.frozen
class Sample:
    """One prompt's speculative output. `text` is None without a tokenizer."""

    row: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    verifies: int
    text: str | None


@attrs.frozen
class Setup:
    """What was evaluated, and how."""

    checkpoint: str
    step: int
    untrained: bool
    target: str
    prompts: str
    device: str
    dtype: str
    max_new_tokens: int
    draft_tokens: int
    batch_size: int
    sampling: Sampling | None = None


@attrs.frozen
class EvalReport:
    """Real speculative decoding against plain decoding with the same code, over the same batches.

    `differences` are empty for sampled output, which is the target's in distribution and not token by token.
    """

    setup: Setup
    acceptance: Acceptance
    speculative: Speed
    plain: Speed
    differences: tuple[Difference, ...]
    skipped: Mapping[str, int]
    samples: tuple[Sample, ...]

    @property
    def unexplained(self) -> int:
        """Prompts whose outputs differ at something else than a near-tie; zero where all is well."""
        return sum(not d.near_tie for d in self.differences)

    @property
    def speedup(self) -> float:
        return self.speculative.tokens_per_s / self.plain.tokens_per_s if self.plain.tokens_per_s else 0.0

    def json(self) -> dict[str, Any]:
        """Plain data with a versioned schema; `acceptance_length` is tokens per verify, bonus token counted."""
        counts = self.acceptance
        return {
            "schema": SCHEMA,
            **attrs.asdict(self.setup),
            "evaluated_prompts": counts.prompts,
            "skipped_rows": dict(self.skipped),
            "acceptance_length": counts.acceptance_length,
            "acceptance_per_position": list(counts.per_position),
            "accepted_histogram": list(counts.histogram),
            "verifies": counts.verifies,
            "generated_tokens": counts.generated_tokens,
            "cut_tokens": counts.cut_tokens,
            "speculative_tokens_per_s": self.speculative.tokens_per_s,
            "plain_tokens_per_s": self.plain.tokens_per_s,
            "speedup": self.speedup,
            "differing_prompts": len(self.differences),
            "differing_not_near_tie": self.unexplained,
            "differences": [attrs.asdict(d) for d in self.differences],
            "samples": [attrs.asdict(s) for s in self.samples],
        }

    def text(self) -> str:
        """The report as lines of plain text, with the first sample."""
        setup, counts = self.setup, self.acceptance
        draft = "untrained draft of" if setup.untrained else "draft of"
        shares = "  ".join(f"{i}: {share:.1%}" for i, share in enumerate(counts.per_position, start=1))
        lines = [
            ("evaluated", f"{draft} {setup.checkpoint} (step {setup.step}) for {setup.target}"),
            (
                "prompts",
                f"{counts.prompts} of {setup.prompts}, at most {setup.max_new_tokens} new tokens, "
                f"batches of {setup.batch_size}, {setup.dtype} on {setup.device}",
            ),
            *(("skipped", f"{counted(n, 'row')}: {reason}") for reason, n in sorted(self.skipped.items())),
            (
                "acceptance length",
                f"{counts.acceptance_length:.3f} tokens per verify, bonus token counted "
                f"(at most {setup.draft_tokens + 1}; {counts.verifies} verifies, {counts.generated_tokens} tokens)",
            ),
            ("drafts accepted", f"{shares}  (share of verifies that accept the first i drafts)"),
            (
                "tokens/s",
                f"{self.speculative.tokens_per_s:.1f} speculative, {self.plain.tokens_per_s:.1f} plain, "
                f"{self.speedup:.2f}x",
            ),
            self._agreement(),
            *(("", _place(d, self.samples)) for d in self.differences[:LISTED_DIFFERENCES]),
        ]
        if self.samples:
            sample = self.samples[0]
            shown = sample.text if sample.text is not None else " ".join(map(str, sample.tokens))
            cut = shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + " ..."
            lines.append((f"row {sample.row} says", " ".join(cut.split())))
        return "\n".join(f"{name:<18} {value}" for name, value in lines)

    def _agreement(self) -> tuple[str, str]:
        total, differing, sampling = self.acceptance.prompts, len(self.differences), self.setup.sampling
        if sampling is not None:
            how = f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, seed {sampling.seed}"
            return "sampled output", f"{how}: distributed as the target's own (rejection sampling), not compared"
        if not differing:
            return "greedy output", f"equals plain decoding's on all {total} prompts"
        return "greedy output", (
            f"differs from plain decoding's on {differing} of {total} prompts: {differing - self.unexplained} at "
            f"near-ties (top-2 gap under {NEAR_TIE_ULPS:g} ulps), {self.unexplained} elsewhere"
        )


def _place(difference: Difference, samples: tuple[Sample, ...]) -> str:
    kind = "near-tie" if difference.near_tie else "NOT a near-tie"
    return (
        f"row {samples[difference.prompt].row}, token {difference.position}: {kind}, top-2 gap "
        f"{difference.plain_gap_ulps:.1f} ulps plain, {difference.speculative_gap_ulps:.1f} ulps speculative"
    )
