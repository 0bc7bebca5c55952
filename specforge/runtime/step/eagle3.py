"""In: a `Batch` and the frozen target head. Out: EAGLE3's loss and metrics (training-time test, arXiv 2503.01840).

K decoder steps first, over the rows that are read at all, then one loss over the loss rows of all steps.
Legend: R rows of the pack, C context rows, Q kept rows of a step, U teacher rows, W loss rows of all steps,
K TTT steps, H hidden, N heads, G key-value heads, D head width, V target vocabulary, P = N+2G.

Matmuls as torch's FLOP counter sees them in forward plus backward, in multiply-adds (a FLOP count is twice that).
Q_k kept rows of step k, Q = sum_k Q_k, Ht target hidden, I intermediate, Vd draft vocabulary:
  fc                       2 · C·3Ht·H                               3 with fc_norm, which needs its gradient
  q, k, v of embeddings    3 · (Q_0·H·PD + (C-Q_0)·H·2GD)            once, not per step
  q, k, v of states        3 · (Q·H·PD + (C-Q_0)·H·2GD)
  o, MLP                   3 · Q·(ND·H + 3·H·I)              with `recompute` 4
  head                     3 · W·H·Vd                                 4 with LK "lambda"
  teacher                  1 · U·Ht·V
  attention                7 · ND·(pairs + sum_k Q_k·k)              2 forward, 1 computed again, 4 backward
`pairs`: query slots times key columns of the layout's tiles. One document of T tokens, all supervised, n = T-1:
C = Q_0 = U = n, Q_k = n-k (while positive), W = Q; step k has tiles of at most 512 queries, so its pairs are
sum over b = 0, 512, ... < Q_k of min(512, Q_k-b)·min(b+512, Q_k). At most 512 queries: attention is 7·ND·n·Q in all.
(512 on a CPU; on a GPU 2048: the layout's Tiling.)
"""

from __future__ import annotations

import torch
from specforge_kernels.implementation import implementation as chosen
from specforge_kernels.soft_target_loss import LK, AfterHead, Teacher, lk_loss, soft_target_loss, teacher
from specforge_kernels.split_rotate import rotate, split_rotate
from specforge_kernels.ttt_attention import OwnPairs, ttt_attention
from torch.utils.checkpoint import checkpoint

from specforge.runtime.data.batch import Batch
from specforge.runtime.draft.eagle3 import Eagle3Draft
from specforge.runtime.draft.ties import Ties
from specforge.runtime.step.kernels import Kernels
from specforge.runtime.step.result import StepResult
from specforge.runtime.step.rows import RowPlan, row_plan
from specforge.runtime.step.take import take
from specforge.settings import Eagle3Settings, Logits

PLAIN, AUTO = Logits(), Kernels()
SUMS = ("ploss_K", "correct_K", "rows_K", "acceptance_K", "kept_K")


class Eagle3Step:
    """Callable: one micro-step. `head_VH`: the target's LM head; `logits`: what the target does after it.

    `kernels`: which implementation the hot parts run, those in the draft too.

    `StepResult.sums` per TTT step k: `ploss_K`, cross-entropy over rows whose teacher argmax is in the draft
    vocabulary, normalised as the loss is but without decay, or with `lk` that loss without decay; `correct_K`, top
    draft token is the teacher's argmax, of `rows_K` supervised rows; `acceptance_K`, sum_v min(p, q), over the `kept_K`
    rows whose teacher argmax is in the draft vocabulary.
    """

    def __init__(
        self,
        draft: Eagle3Draft,
        head_VH: torch.Tensor,
        settings: Eagle3Settings,
        logits: Logits = PLAIN,
        kernels: Kernels = AUTO,
    ) -> None:
        self.draft, self.head_VH, self.settings, self.kernels = draft, head_VH, settings, kernels
        draft.use(kernels.rms_norm, kernels.swiglu)
        self.after = AfterHead(logits.scale, logits.softcap)

    def __call__(self, batch: Batch, tokens_total: int, micro_steps: int = 1) -> StepResult:
        """`tokens_total`: N, supervised rows of the optimizer step; `micro_steps`: its packs. Both over all ranks.

        Gradients and sums are summed over micro-steps and ranks. Reduction "tokens" divides by N. "rows" divides by
        this micro-step's rows ("padded": of its padded batch) and `micro_steps`: a mean over the packs of all ranks, of
        each one's mean.
        LK losses are means over the rows of a TTT step whose teacher argmax is in the draft vocabulary, of this
        micro-step, divided by `micro_steps` in the same way; "lambda"'s cross-entropy is reduced as without `lk`. A
        TTT step without such rows adds 0. A pack that is empty, or without supervised rows, gives zero gradients.
        """
        if batch.pack.supervised == 0:
            return StepResult(self._zero(), dict(zip(SUMS, self._no_sums())))
        weight, kernels = self.draft.fc.weight, self.kernels
        attention = chosen(weight.device, weight.dtype, kernels.ttt_attention, self.draft.settings.head_dim)
        host = row_plan(batch.pack, self.settings.ttt_length, batch.tokens_R.is_cuda, attention == "triton")
        rows = host.to(batch.tokens_R.device)
        draft, settings = self.draft, self.settings
        taught = self.teacher(batch.last_RH.index_select(0, rows.last_U))
        inside_W = draft.t2d[taught.argmax_U][rows.teacher_W]
        rows_of = {"rows": batch.pack.rows, "padded": batch.pack.padded_rows}
        share = 1 / tokens_total if settings.reduction == "tokens" else 1 / (rows_of[settings.reduction] * micro_steps)
        weight_W = torch.pow(settings.position_decay, rows.step_W.to(torch.float64)) * share * inside_W
        weight_W[host.loss :] = 0.0
        states_WH = self._unroll(rows, batch)
        arguments = (states_WH, draft.lm_head.weight, taught, rows.teacher_W)
        if settings.lk is None:
            loss = soft_target_loss(*arguments, weight_W, draft.d2t)
        else:
            counted_W = inside_W.clone()
            counted_W[host.loss :] = False
            decay_K = torch.pow(
                settings.position_decay, torch.arange(settings.ttt_length, dtype=torch.float64, device=counted_W.device)
            )
            objective = self._lk(weight_W, counted_W, rows, decay_K / micro_steps)
            loss = lk_loss(*arguments, objective, draft.d2t)
        inside_W = inside_W.to(torch.float64)
        per_row = (
            loss.ce_W * inside_W * share,
            loss.correct_W,
            torch.ones_like(inside_W),
            loss.acceptance_W * inside_W,
        )
        rows_5W = torch.stack([x[: host.loss].to(torch.float64) for x in (*per_row, inside_W)])
        sums_5K = self._no_sums()
        for k, part in enumerate(rows_5W.split([s.loss for s in host.steps], dim=1)):
            sums_5K[:, k] = part.sum(1)
        if settings.lk is not None:
            plain = self._lk(
                counted_W.to(torch.float64) * share, counted_W, rows, torch.full_like(decay_K, 1 / micro_steps)
            )
            sums_5K[0] = plain.losses(loss.ce_W, loss.acceptance_W)
        return StepResult(loss.loss, dict(zip(SUMS, sums_5K)))

    def teacher(self, last_UH: torch.Tensor) -> Teacher:
        """The target's distribution at these rows of its last hidden states."""
        weight = self.draft.fc.weight
        kind = chosen(weight.device, weight.dtype, self.kernels.soft_target_loss)
        return teacher(last_UH, self.head_VH, self.draft.kept_ids_d, implementation=kind, after=self.after)

    def _unroll(self, rows: RowPlan, batch: Batch) -> torch.Tensor:
        """K decoder steps -> what the head reads of each loss row, [W, H] in the order of steps."""
        draft, layer = self.draft, self.draft.midlayer
        heads, kv_heads, width = draft.settings.num_heads, draft.settings.num_kv_heads, draft.settings.head_dim
        first = rows.steps[0].kept
        hidden_CH = draft.fuse(batch.aux_RC.index_select(0, rows.context_C))
        tokens_C = batch.tokens_R.index_select(0, rows.token_C)
        embedded_CH = layer.input_layernorm(draft.embed_tokens(tokens_C).to(hidden_CH.dtype))
        normed_CH = layer.hidden_norm(hidden_CH)
        from_embedding, from_hidden = layer.self_attn.input_weights()

        embedded_QX = embedded_CH[:first] @ from_embedding.t()
        qkv_QPD = torch.addmm(embedded_QX, normed_CH[:first], from_hidden.t()).view(first, -1, width)
        turn = draft.rotary(rows.position_C)
        query_QND, key_CGD, value_CGD = self._rotated(qkv_QPD, *(t[:first] for t in turn))
        if len(rows.context_C) > first:
            kv = slice(heads * width, None)
            rest = torch.addmm(embedded_CH[first:] @ from_embedding[kv].t(), normed_CH[first:], from_hidden[kv].t())
            rest = rest[: rows.context - first].view(-1, 2 * kv_heads, width)
            key_rest, value_rest = rest.split(kv_heads, dim=1)
            key_CGD = torch.cat([key_CGD, rotate(key_rest, *(t[first : rows.context] for t in turn))])
            value_CGD = torch.cat([value_CGD, value_rest])

        if rows.keys_C is not None:
            key_CGD, value_CGD = (take(x[: rows.context], rows.keys_C) for x in (key_CGD, value_CGD))

        hidden_QH, states = hidden_CH[:first], []
        own_keys: list[torch.Tensor] = []
        own_values: list[torch.Tensor] = []
        pairs: OwnPairs | None = None
        ties = Ties()
        for k, step in enumerate(rows.steps):
            if k > 0:
                hidden_QH = hidden_QH[: step.kept]
                embedded = take(embedded_QX, step.ahead)
                (qkv,) = layer.hidden_norm.then(hidden_QH, ties.of(from_hidden), added=embedded)
                turn = draft.rotary(rows.position_C[: step.kept] + k)
                query_QND, own_key, own_value = self._rotated(qkv.view(step.kept, -1, width), *turn)
                if rows.keys_C is None:
                    own_keys.append(own_key)
                    own_values.append(own_value)
                else:
                    if pairs is None:
                        pairs = OwnPairs(len(rows.steps) - 1, own_key, own_value)
                    pairs.append(own_key, own_value)
            own = (own_keys, own_values) if pairs is None else (pairs, pairs)
            attended = ttt_attention(query_QND, key_CGD, value_CGD, *own, step.attention)
            hidden_QH = draft.feedback(self._finish(hidden_QH, attended.flatten(1), ties))
            read_WH = hidden_QH[: step.loss] if step.loss_at is None else take(hidden_QH, step.loss_at)
            states.append(draft.head_input(read_WH))
        states.append(hidden_QH.new_zeros(len(rows.step_W) - rows.loss, hidden_QH.shape[1]))
        return torch.cat(states)

    def _finish(self, residual_QH: torch.Tensor, attended_QX: torch.Tensor, ties: Ties) -> torch.Tensor:
        finish = self.draft.midlayer.finish
        if not self.settings.recompute:
            return finish(residual_QH, attended_QX, ties)
        # nothing in it is random: no generator's state to bring back
        return checkpoint(finish, residual_QH, attended_QX, ties, use_reentrant=False, preserve_rng_state=False)

    def _lk(self, weight_W: torch.Tensor, counted_W: torch.Tensor, rows: RowPlan, share_K: torch.Tensor) -> LK:
        settings = self.settings
        assert settings.lk is not None
        return LK(settings.lk, weight_W, counted_W, rows.step_W, share_K, settings.kl_scale, settings.kl_decay)

    def _rotated(
        self, qkv_QPD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        settings = self.draft.settings
        return split_rotate(qkv_QPD, (cos, sin), settings.num_heads, settings.num_kv_heads, self.kernels.split_rotate)

    def _zero(self) -> torch.Tensor:
        """0 with a graph, so that a micro-step without supervised rows gives every parameter a zero gradient."""
        return torch.stack([p.sum() for p in self.draft.parameters() if p.requires_grad]).sum() * 0.0

    def _no_sums(self) -> torch.Tensor:
        return torch.zeros(len(SUMS), self.settings.ttt_length, dtype=torch.float64, device=self.draft.d2t.device)
