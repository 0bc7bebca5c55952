"""In: resolved settings. Out: `Estimate`: bytes by part of one rank and FLOPs by part of one micro-step.

Legend: T tokens of a document at full length, D documents, K TTT steps, H hidden, Q rows a step computes.
"""

from __future__ import annotations

import attrs

from specforge.compiler.parameter_count import layer_parameters
from specforge.dsl.feature import DTYPE_BYTES
from specforge.plan import Batch, FlopPart, MemoryPart
from specforge.settings import TargetSettings, TrainSettings


@attrs.frozen
class Estimate:
    """Counts for micro-steps of full documents with every row supervised: the most a step can cost."""

    target: TargetSettings
    train: TrainSettings
    batch: Batch
    target_dtype: str
    max_length: int

    def memory(self, role: str) -> tuple[MemoryPart, ...]:
        """Resident bytes by part. Weights, gradients, moments and features are exact; the rest is an upper estimate."""
        draft, geometry = self.train.draft, self.target.geometry
        rows = self.batch.micro_documents * self.max_length
        trained = sum(p.count for p in draft.parameters if p.trainable)
        frozen = sum(p.bytes for p in draft.parameters if not p.trainable)
        compute = DTYPE_BYTES[draft.dtype]
        captured = (len(draft.aux_layers) + 1) * draft.target_hidden_size * DTYPE_BYTES[self.target_dtype]
        target = self.target.parameter_count * DTYPE_BYTES[self.target_dtype]
        masters = 4 * trained if draft.dtype != "float32" else 0
        prefill = rows * (2 * geometry.intermediate_size + 4 * geometry.hidden_size) * DTYPE_BYTES[self.target_dtype]
        kept = self.train.eagle3.ttt_length * rows
        inner = 6 * draft.hidden_size + 3 * draft.intermediate_size + 4 * draft.num_heads * draft.head_dim
        scores = draft.num_heads * self.max_length * 2 * compute
        parts = (
            MemoryPart(role, "target weights", target, True, f"{self.target.parameter_count:,} parameters"),
            MemoryPart(role, "draft weights", compute * trained, True, f"{trained:,} parameters, {draft.dtype}"),
            MemoryPart(role, "draft frozen", frozen, True, "embedding, d2t, t2d"),
            MemoryPart(
                role, "float32 masters", masters, True, "none: the weights are float32" if not masters else "4 B each"
            ),
            MemoryPart(role, "gradients", compute * trained, True, draft.dtype),
            MemoryPart(role, "AdamW moments", 8 * trained, True, "two float32 each"),
            MemoryPart(role, "features", rows * captured, True, "captured states of one micro-step"),
            MemoryPart(
                role, "teacher", rows * draft.draft_vocab_size * compute, False, "draft-vocabulary logits, once"
            ),
            MemoryPart(role, "activations", kept * (inner * compute + scores), False, "of all TTT steps, for backward"),
            MemoryPart(role, "prefill", prefill, False, "the target's widest layer"),
        )
        return tuple(p for p in parts if p.bytes or p.exact)

    def total_bytes(self, role: str) -> int:
        return sum(p.bytes for p in self.memory(role))

    def flops(self) -> tuple[FlopPart, ...]:
        """FLOPs of one micro-step: the target's prefill, the teacher, and the draft's forward and backward."""
        geometry, documents = self.target.geometry, self.batch.micro_documents
        tokens, rows = self.max_length, self.batch.micro_documents * self.max_length
        queries = geometry.num_heads * geometry.head_dim
        attention = 4 * queries * tokens * tokens * geometry.num_layers * documents
        prefill = 2 * rows * geometry.num_layers * layer_parameters(geometry)
        parts = [FlopPart("target prefill", prefill + attention // 2, prefill + attention)]
        return tuple(parts)
