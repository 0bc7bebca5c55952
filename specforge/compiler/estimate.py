"""In: resolved settings. Out: `Estimate`: bytes by part of one rank and FLOPs by part of one micro-step.

Legend: T tokens of a document at full length, D documents, K TTT steps, H hidden, Q rows a step computes.
"""

from __future__ import annotations

import attrs

from specforge.compiler.parameter_count import active_layer_parameters
from specforge.dsl.feature import DTYPE_BYTES
from specforge.plan import Batch, FlopPart, MemoryPart
from specforge.settings import CaptureSettings, Geometry, TargetSettings, TrainSettings

ATTENTION_BLOCK = {"cpu": 512}
GPU_ATTENTION_BLOCK = 2048
SAME = "none: the weights are float32"


@attrs.frozen
class Estimate:
    """Counts for micro-steps of full documents with every row supervised: the most a step can cost.

    `triton`: the hot parts that a Triton kernel runs. `evaluation_tokens`: of an evaluation's pack, at most.
    """

    target: TargetSettings
    train: TrainSettings
    batch: Batch
    target_dtype: str
    capture: CaptureSettings
    max_length: int
    device: str
    triton: frozenset[str]
    evaluation_tokens: int = 0

    @property
    def attention_block(self) -> int:
        """Query rows of a document that attention takes at once."""
        return ATTENTION_BLOCK.get(self.device, GPU_ATTENTION_BLOCK)

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-step, at most."""
        batch = self.batch
        return batch.step_tokens_at_most // (batch.accumulation * batch.ranks)

    @property
    def _held(self) -> tuple[int, str]:
        """Tokens a rank holds features of, at most, and whose they are."""
        documents = self.capture.batch_documents
        if self.batch.micro_documents is None:
            most = max(self.micro_tokens * self.batch.accumulation, documents * self.max_length)
            return most, f"of {_documents(documents)} captured together, or of a step"
        step = self.batch.micro_documents * self.batch.accumulation
        held = max(1, documents // step) * step
        return held * self.max_length, f"of {_documents(held)} captured together"

    def memory(self, capture: str, trainer: str, split: int = 1) -> tuple[MemoryPart, ...]:
        """Resident bytes by part of one rank of the role that captures and of that which trains; they may be one.

        Weights, gradients, moments and features are exact; the rest is an upper estimate. `split`: GPUs that hold the
        target together.
        """
        draft, geometry = self.train.draft, self.target.geometry
        rows = self.micro_tokens
        trained = sum(p.count for p in draft.parameters if p.trainable)
        frozen = sum(p.bytes for p in draft.parameters if not p.trainable)
        compute = DTYPE_BYTES[draft.dtype]
        captured = (len(draft.aux_layers) + 1) * draft.target_hidden_size * DTYPE_BYTES[self.capture.dtype]
        target = self.target.parameter_count * DTYPE_BYTES[self.target_dtype] // split
        apart = capture != trainer
        head = geometry.vocab_size * geometry.hidden_size * DTYPE_BYTES[self.target_dtype] * apart
        parameters = f"{self.target.parameter_count:,} parameters" + (f", over {split} GPUs" if split > 1 else "")
        masters = 4 * trained if draft.dtype != "float32" else 0
        wide, bucket = ", and float32" if masters else "", 4 * trained * (self.batch.ranks > 1)
        held, note = self._held
        forward = min(held, self.capture.batch_documents * self.max_length)
        prefill = prefill_bytes(geometry, forward, self.target_dtype)
        chunk, head_gradient = self._loss_chunk(), 4 * draft.draft_vocab_size * draft.hidden_size
        teacher, activations = rows * draft.draft_vocab_size * compute, self._activations() * compute
        # without a backward pass: features, teacher, what the head reads; the training's own are not there then
        row = captured + (draft.draft_vocab_size + self.train.eagle3.ttt_length * draft.hidden_size) * compute
        evaluation = max(0, self.evaluation_tokens * row - rows * captured - teacher - activations)
        scores = 0
        if "ttt_attention" not in self.triton:
            scores = rows * draft.num_heads * min(self.max_length, self.attention_block) * 4
        parts = (
            MemoryPart(capture, "target weights", target, True, parameters),
            MemoryPart(trainer, "target head", head, True, "for the teacher"),
            MemoryPart(trainer, "draft weights", compute * trained, True, f"{trained:,} parameters, {draft.dtype}"),
            MemoryPart(trainer, "draft frozen", frozen, True, "embedding, d2t, t2d"),
            MemoryPart(trainer, "float32 masters", masters, True, "4 B each" if masters else SAME),
            MemoryPart(trainer, "gradients", compute * trained + masters, True, draft.dtype + wide),
            MemoryPart(trainer, "gradient bucket", bucket, False, "summed over all ranks"),
            MemoryPart(trainer, "AdamW moments", 8 * trained, True, "two float32 each"),
            MemoryPart(capture, "features", held * captured, self.batch.pack_tokens is None, note),
            MemoryPart(trainer, "micro-step", rows * captured, True, "its features, laid end to end"),
            MemoryPart(trainer, "teacher", teacher, False, "draft-vocabulary logits, once"),
            MemoryPart(trainer, "activations", activations, False, "of all TTT steps, for backward"),
            MemoryPart(trainer, "evaluation", evaluation, False, "its pack, beyond a micro-step's three above"),
            MemoryPart(trainer, "loss chunk", chunk, False, "logits of some rows at a time"),
            MemoryPart(trainer, "head gradient", head_gradient, False, "float32, summed over chunks"),
            MemoryPart(trainer, "attention scores", scores, False, "of one TTT step at a time"),
            MemoryPart(capture, "prefill", prefill, False, "the target's widest layer"),
        )
        return tuple(p for p in parts if p.bytes or (p.exact and p.name != "target head"))

    def _activations(self) -> int:
        """Elements kept for the backward pass: of every row of every TTT step, and once of every row of the pack.

        Per row of a step: four rows of H (its input, what the MLP's norm reads, what the head reads and its gradient),
        q and the attention's output, the own key and value, and the MLP's four of its inner width; Triton makes two of
        these again, and keeps own keys and values once, where PyTorch keeps at step k a copy of those of all steps
        before. Beside them the q, k and v weights, joined.
        """
        draft, steps = self.train.draft, self.train.eagle3.ttt_length
        hidden, keys = draft.hidden_size, draft.num_kv_heads * draft.head_dim
        mlp = (2 if "swiglu" in self.triton else 4) * draft.intermediate_size
        step = 4 * hidden + mlp + 2 * draft.num_heads * draft.head_dim + 2 * keys
        if "ttt_attention" not in self.triton:
            step += (steps - 1) * keys
        once = len(draft.aux_layers) * draft.target_hidden_size * (1 + draft.fc_norm) + 3 * hidden
        if self.train.eagle3.recompute:  # the attention's input and output; one step's MLP at a time
            step -= mlp + hidden
            once += mlp + hidden
        joined = (draft.num_heads * draft.head_dim + 2 * keys) * 2 * hidden  # q, k and v weights as one matrix
        return self.micro_tokens * (steps * step + once) + joined

    def _loss_chunk(self) -> int:
        """Bytes of the buffers that the loss works in: as chunk_rows and kernel_chunk_rows of soft_target_loss.

        Triton's loss lets its chunk go before the head's gradient is rounded, so the larger of the two counts.
        """
        draft, compute = self.train.draft, DTYPE_BYTES[self.train.draft.dtype]
        rows, vocabulary = self.train.eagle3.ttt_length * self.micro_tokens, draft.draft_vocab_size
        if "soft_target_loss" in self.triton:
            most = max(4096, (1 << 29) // vocabulary // 4096 * 4096)
            chunk = min(rows, most, -(-rows // 4 // 4096) * 4096)
            return max(chunk, draft.hidden_size) * vocabulary * compute
        least, elements = (64, 1 << 21) if self.device == "cpu" else (4096, 1 << 27)
        most = max(least, elements // vocabulary // least * least)
        return min(rows, most) * vocabulary * (2 * compute + 3 * 4)

    def flops(self) -> tuple[FlopPart, ...]:
        """FLOPs of one micro-step of full documents, every row supervised: prefill, teacher, draft there and back.

        "computed" counts what the chosen implementation multiplies. In PyTorch, as torch's FLOP counter sees it:
        attention is computed in square tiles, and its scores once more in the backward pass.
        """
        geometry, draft = self.target.geometry, self.train.draft
        documents = self.micro_tokens // self.max_length
        hidden, width, tokens = draft.hidden_size, draft.head_dim, self.max_length
        tiles = _tiles(tokens, self.train.eagle3.ttt_length, self.attention_block)
        rows = documents * (tokens - 1)
        step_rows = documents * sum(tile.queries for tile in tiles)
        seen = documents * sum(tile.queries * tile.keys for tile in tiles)
        visible = documents * sum(tile.visible for tile in tiles)
        suffix = documents * sum(tile.queries * tile.step for tile in tiles)

        qkv = (draft.num_heads + 2 * draft.num_kv_heads) * width
        inner = draft.num_heads * width
        mlp = step_rows * 3 * hidden * draft.intermediate_size

        def both(name: str, multiply_adds: int, passes: int = 3, again: int = 0) -> FlopPart:
            return FlopPart(name, 2 * multiply_adds * passes, 2 * multiply_adds * (passes + again))

        recompute = self.train.eagle3.recompute
        # Triton computes what is visible, and scores twice more in the backward pass
        attention = 9 * visible if "ttt_attention" in self.triton else 7 * seen

        return (
            prefill_flops(geometry, documents, tokens),
            both("teacher head", rows * draft.target_hidden_size * geometry.vocab_size, 1),
            both("fc", rows * len(draft.aux_layers) * draft.target_hidden_size * hidden, 3 if draft.fc_norm else 2),
            both("q, k, v", (rows + step_rows) * hidden * qkv),
            FlopPart(
                "attention",
                2 * inner * 6 * (visible + suffix),
                2 * inner * (attention + 7 * suffix),
            ),
            both("o", step_rows * inner * hidden, again=recompute),
            both("MLP", mlp, again=recompute),
            # LK lambda needs the mean acceptance of each step before it can form gradients
            both(
                "draft head", step_rows * hidden * draft.draft_vocab_size, 4 if self.train.eagle3.lk == "lambda" else 3
            ),
        )


def _documents(count: int) -> str:
    return f"{count} document{'s' * (count != 1)}"


def prefill_flops(geometry: Geometry, documents: int, tokens: int) -> FlopPart:
    """A forward of the target without its head, over `documents` of `tokens` tokens."""
    latent, value = geometry.latent, geometry.head_dim
    pair = value + (latent.nope_dim + latent.rope_dim if latent else value)
    linear = 2 * documents * tokens * active_layer_parameters(geometry)
    dense = 2 * geometry.num_heads * pair * tokens * tokens * geometry.num_layers * documents
    return FlopPart("target prefill", linear + dense // 2, linear + dense)


def prefill_bytes(geometry: Geometry, tokens: int, dtype: str) -> int:
    """What the target's widest layer keeps of `tokens` tokens, at most."""
    return tokens * _widest(geometry) * DTYPE_BYTES[dtype]


def _widest(geometry: Geometry) -> int:
    """Elements of one token that the target's widest layer holds at once; each expert a token meets has a copy."""
    hidden, experts, latent = geometry.hidden_size, geometry.experts, geometry.latent
    widths = [2 * geometry.intermediate_size + 4 * hidden]
    if experts:
        widths.append(experts.active * 2 * (experts.intermediate_size + hidden) + 4 * hidden)
    if latent:
        widths.append(2 * geometry.num_heads * (latent.nope_dim + latent.rope_dim + latent.value_dim) + 4 * hidden)
    return max(widths)


@attrs.frozen
class _Tile:
    """`queries` rows of TTT step `step` of one document, computed over `keys` keys, `visible` pairs of them causal."""

    step: int
    queries: int
    keys: int
    visible: int


def _tiles(tokens: int, steps: int, block: int) -> tuple[_Tile, ...]:
    """Attention of one fully supervised document: step k computes its first tokens - 1 - k rows, in blocks."""
    found = []
    for step in range(steps):
        count = tokens - 1 - step
        for first in range(0, max(count, 0), block):
            last = min(first + block, count)
            found.append(_Tile(step, last - first, last, (last - first) * (first + 1 + last) // 2))
    return tuple(found)
