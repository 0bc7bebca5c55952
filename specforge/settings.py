"""In: nothing. Out: what each operation of a plan needs to run, fully resolved: one frozen class per operation."""

from __future__ import annotations

from typing import Any

import attrs

from specforge.dsl.feature import DTYPE_BYTES


@attrs.frozen
class Experts:
    """Layers whose MLP is `count` experts, of which a token meets `active`, and `shared` more that every token meets.

    `intermediate_size` is the width of one expert; `layers` is how many decoder layers are of this kind.
    """

    count: int
    active: int
    shared: int
    intermediate_size: int
    layers: int


@attrs.frozen
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values from one vector of `kv_rank`.

    A head's query and key have `nope_dim` + `rope_dim` elements, its value `value_dim`. `query_rank` None: queries are
    projected at once.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@attrs.frozen
class Logits:
    """What a target makes of its head's matmul: z -> z * `scale`, then z -> `softcap` * tanh(z / `softcap`) if any."""

    scale: float = 1.0
    softcap: float | None = None


@attrs.frozen
class Geometry:
    """The facts of a target's config.json that anything else depends on.

    `rope` is the config's rotary description in the transformers v5 schema (`rope_type`, `rope_theta`, factors).
    `weights_dtype` is the dtype of the stored weights. `experts`, `latent`: None where MLP and attention are plain.
    With `latent`, `head_dim` is that of the values.
    """

    architecture: str
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    rope: dict[str, Any]
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    initializer_range: float
    weights_dtype: str
    experts: Experts | None = None
    latent: LatentAttention | None = None
    logits: Logits = Logits()


@attrs.frozen
class TargetSettings:
    """The frozen target model. `random_seed` set: weights are drawn by the run instead of loaded.

    `folder` is a local folder with weights (relative to the plan's base), or None: found by name in the caches.
    """

    name: str
    folder: str | None
    config: str
    random_seed: int | None
    geometry: Geometry
    parameter_count: int


@attrs.frozen
class SourceSettings:
    """A source of documents. `kind`: "conversations", "prompts" or "mix". `path` is relative to the plan's base.

    `max_length`: tokens a document keeps (right-truncated). `max_rows`: rows read from the file, None for all.
    `chat_template`: None for the tokenizer's own, else Jinja text. `strict`: a row with a fault stops the run.
    `last_turn_only`: only the last assistant turn of a conversation is supervised. `preformatted`: rows hold
    text that the chat template has rendered already. `chat_family`: whose template `chat_template` is, None for no
    family. `reply_header`, `reply_end`: the marks by which replies are found, None where the template tells.
    A mix has `parts`, each a source with its own file, read as often in an epoch as its of `weights` says; where that
    is no whole number, `seed` chooses the documents. Its `path` names the files, and is none.
    """

    kind: str
    path: str
    max_length: int
    max_rows: int | None
    chat_template: str | None
    strict: bool
    last_turn_only: bool
    preformatted: bool
    chat_family: str | None = None
    reply_header: str | None = None
    reply_end: str | None = None
    parts: tuple[SourceSettings, ...] = ()
    weights: tuple[float, ...] = ()
    seed: int = 0

    @property
    def files(self) -> tuple[SourceSettings, ...]:
        """The sources that read a file: itself, or the parts of a mix."""
        return self.parts or (self,)


@attrs.frozen
class CaptureSettings:
    """What is captured of the target: outputs of `layers` (concatenated) and the post-norm last hidden state.

    `batch_documents`: documents in one forward of the target; the batches follow the recorded order. `packed`: they lie
    end to end there, where the target's attention keeps them apart; else they are padded.
    """

    layers: tuple[int, ...]
    last_hidden: bool
    dtype: str
    batch_documents: int
    packed: bool = False


@attrs.frozen
class Parameter:
    """One entry of the draft's state_dict."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @property
    def count(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def bytes(self) -> int:
        return self.count * DTYPE_BYTES[self.dtype]


@attrs.frozen
class DraftSettings:
    """The draft model, fully resolved. `target_hidden_size` is the width of one captured layer; `aux_layers` which.

    `parameters` is the state_dict: names, shapes, dtypes. `weights`: the file that a first start
    reads them from, relative to the plan's base, None: drawn from the seed.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]
    rms_norm_eps: float
    hidden_act: str
    rope: dict[str, Any]
    max_position_embeddings: int
    fc_norm: bool
    norm_output: bool
    dtype: str
    initializer_range: float
    parameters: tuple[Parameter, ...]
    weights: str | None = None


@attrs.frozen
class Eagle3Settings:
    """EAGLE3's loss: `ttt_length` K steps, step k weighted `position_decay` ** k.

    `reduction`: "tokens" divides by N, the supervised rows of the optimizer step; "rows" by those of
    the micro-step; "padded" by its documents times the longest of them.
    `lk`: "alpha" or "lambda" in place of cross-entropy; the formulas: specforge_kernels.soft_target_loss.LK.
    `recompute`: what follows the attention in each TTT step is computed again in the backward pass, not kept.
    """

    ttt_length: int
    position_decay: float
    reduction: str
    lk: str | None = None
    kl_scale: float = 1.0
    kl_decay: float = 1.0
    recompute: bool = False


@attrs.frozen
class TrainSettings:
    """The optimizer step. Learning rates per step are the closed form of `schedule` over `schedule_steps`.

    `batch_documents` documents make a micro-step, or (it is None then) as many as fit `pack_tokens` tokens;
    `accumulation` micro-steps on every rank make an optimizer step.
    `max_steps` and `schedule_steps` are None until known: fixed by the run after preparation.
    `precision`: dtype of the draft's compute weights; masters are float32 always.
    """

    strategy: str
    draft: DraftSettings
    eagle3: Eagle3Settings
    batch_documents: int | None
    accumulation: int
    epochs: int
    max_steps: int | None
    schedule: str
    schedule_steps: int | None
    warmup_ratio: float
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    precision: str
    nonfinite_budget: int
    log_every: int
    pack_tokens: int | None = None


@attrs.frozen
class EvaluateSettings:
    """Teacher-forced evaluation on a held-out source every `every` optimizer steps, and at the end."""

    every: int
    batch_documents: int


@attrs.frozen
class CheckpointSettings:
    """Save every `every` optimizer steps (0: at the end only), keep the newest `keep` and the best."""

    every: int
    keep: int


@attrs.frozen
class ExportSettings:
    """Write the trained draft as `format`: "hf" or "sglang"."""

    format: str


@attrs.frozen
class StoreSettings:
    """Where features wait between `put` and `get`. `kind`: "shared_dir" or "mooncake".

    `path`: a shared_dir's folder, None: in the run's folder. `master` (None: started by the run) and `protocol` are
    Mooncake's. Capture stops at `high_documents` that are not trained yet and goes on at `low_documents`; None: known
    after preparation. `pool_bytes`: what the store holds at most, None: known after preparation. `retain`: "prompts"
    or "features".
    """

    kind: str
    path: str | None
    master: str | None
    protocol: str
    high_documents: int | None
    low_documents: int | None
    pool_bytes: int | None
    retain: str


@attrs.frozen
class RecordSettings:
    """Write what is captured into the folder `path` (relative to the plan's base): specforge/recording.py.

    `nonfinite_budget`: rows with features that are not finite that may be left out.
    """

    path: str
    nonfinite_budget: int


@attrs.frozen
class RecordedSettings:
    """A recording that is read in place of a source and a capture of it. `path` is relative to the plan's base.

    `layers`, `last_hidden`, `dtype`: what was captured; `computed`: the dtype the target computed in. `documents`,
    `tokens`, `max_length`: those of its manifest, the last of its longest document.
    """

    path: str
    layers: tuple[int, ...]
    last_hidden: bool
    dtype: str
    computed: str
    documents: int
    tokens: int
    max_length: int


@attrs.frozen
class CkptSettings:
    """A folder of .ckpt files that was captured elsewhere, to be recorded. `path` is relative to the plan's base.

    `layers`, `last_hidden`, `dtype`: what the files hold. `max_length`: tokens of a document, at most.
    """

    path: str
    max_length: int
    layers: tuple[int, ...]
    last_hidden: bool
    dtype: str


Settings = (
    SourceSettings
    | CaptureSettings
    | TrainSettings
    | EvaluateSettings
    | CheckpointSettings
    | ExportSettings
    | StoreSettings
    | RecordSettings
    | RecordedSettings
    | CkptSettings
)
SETTINGS: dict[str, type] = {
    c.__name__: c
    for c in (
        SourceSettings,
        CaptureSettings,
        TrainSettings,
        EvaluateSettings,
        CheckpointSettings,
        ExportSettings,
        StoreSettings,
        RecordSettings,
        RecordedSettings,
        CkptSettings,
    )
}
