"""In: nothing. Out: settings and plans of a toy run, built directly, without the compiler: `train_settings`, `toy`."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import attrs
import pytest

from specforge.dsl.feature import Feature
from specforge.plan import SCHEMA, Batch, Control, DataFile, Device, Op, Plan, Port, Process, Role, Service
from specforge.settings import (
    CaptureSettings,
    CheckpointSettings,
    DraftSettings,
    Eagle3Settings,
    EvaluateSettings,
    ExportSettings,
    Geometry,
    Parameter,
    SourceSettings,
    StoreSettings,
    TargetSettings,
    TrainSettings,
)

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_parameters": ROPE,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.02,
    "dtype": "float32",
}
GEOMETRY = Geometry(
    architecture="LlamaForCausalLM",
    model_type="llama",
    hidden_size=32,
    num_layers=5,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=96,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope=ROPE,
    tied_embeddings=False,
    bos_token_id=1,
    eos_token_ids=(2,),
    pad_token_id=0,
    initializer_range=0.02,
    weights_dtype="float32",
)
DRAFT_VOCAB = 40
SHAPES = {
    "embed_tokens.weight": (96, 32),
    "fc.weight": (32, 96),
    "midlayer.input_layernorm.weight": (32,),
    "midlayer.hidden_norm.weight": (32,),
    "midlayer.post_attention_layernorm.weight": (32,),
    "midlayer.self_attn.q_proj.weight": (32, 64),
    "midlayer.self_attn.k_proj.weight": (16, 64),
    "midlayer.self_attn.v_proj.weight": (16, 64),
    "midlayer.self_attn.o_proj.weight": (32, 32),
    "midlayer.mlp.gate_proj.weight": (48, 32),
    "midlayer.mlp.up_proj.weight": (48, 32),
    "midlayer.mlp.down_proj.weight": (32, 48),
    "norm.weight": (32,),
    "lm_head.weight": (DRAFT_VOCAB, 32),
}
DRAFT = DraftSettings(
    architecture="LlamaForCausalLMEagle3",
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=96,
    draft_vocab_size=DRAFT_VOCAB,
    target_hidden_size=32,
    aux_layers=(1, 2, 3),
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope=ROPE,
    max_position_embeddings=64,
    fc_norm=False,
    norm_output=False,
    dtype="float32",
    initializer_range=0.02,
    parameters=(
        *(Parameter(n, shape, "float32", n != "embed_tokens.weight") for n, shape in SHAPES.items()),
        Parameter("d2t", (DRAFT_VOCAB,), "int64", False),
        Parameter("t2d", (96,), "bool", False),
    ),
)
TRAIN = TrainSettings(
    strategy="eagle3",
    draft=DRAFT,
    eagle3=Eagle3Settings(ttt_length=3, position_decay=0.8, reduction="tokens"),
    batch_documents=2,
    accumulation=2,
    epochs=4,
    max_steps=None,
    schedule="cosine",
    schedule_steps=None,
    warmup_ratio=0.1,
    learning_rate=3e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    max_grad_norm=0.5,
    precision="float32",
    nonfinite_budget=0,
    log_every=1,
)


STORE = StoreSettings("shared_dir", None, None, "file", None, None, None, "prompts")


@attrs.frozen
class Toy:
    """Builds plans in the folder `base`: 22 training rows and 5 held-out rows of random tokens."""

    base: Path

    def plan(
        self,
        train: dict | None = None,
        checkpoint: dict | None = None,
        evaluate: int | None = None,
        ranks: int = 1,
    ) -> Plan:
        """A plan with these changes of its TrainSettings and CheckpointSettings, evaluated every `evaluate` steps."""
        settings = attrs.evolve(TRAIN, **(train or {}))
        capture = CaptureSettings(layers=(1, 2, 3), last_hidden=True, dtype="float32", batch_documents=4)
        ops = [
            self._source("prompts", "train.jsonl"),
            Op("capture", "capture", (_port("rows", "prompts.rows"),), (_port("features"),), capture),
            Op("train", "train", (_port("features", "capture.features"),), (_port("draft"),), settings),
        ]
        if evaluate is not None:
            ops += [
                self._source("heldout", "heldout.jsonl"),
                Op(
                    "evaluate",
                    "evaluate",
                    (_port("rows", "heldout.rows"), _port("draft", "train.draft")),
                    (),
                    EvaluateSettings(every=evaluate, batch_documents=2),
                ),
            ]
        writes = attrs.evolve(CheckpointSettings(every=0, keep=2), **(checkpoint or {}))
        ops += [
            Op("checkpoint", "checkpoint", (_port("draft", "train.draft"),), (), writes),
            Op("export-sglang", "export", (_port("draft", "train.draft"),), (), ExportSettings("sglang")),
        ]
        roles = (Role("trainer", "cpu", ranks, "transformers", "float32", tuple(ops)),)
        return Plan(
            schema=SCHEMA,
            name="toy",
            seed=7,
            output_dir="run",
            target=TargetSettings("toy-llama", None, "config.json", 3, GEOMETRY, 40_000),
            device=Device("cpu", 0, 0.0, 0.0),
            roles=roles,
            processes=(Process("main", ("trainer",)),),
            files=tuple(self._file(name, use) for name, use in FILES.items()),
            batch=_batch(settings, ranks),
            memory=(),
            flops=(),
            kernels=(),
            export_keys=(),
            warnings=(),
            base=str(self.base),
        )

    def disaggregated(self, plan: Plan, servers: int = 1) -> Plan:
        """`plan` with its target in processes of their own."""
        (role,) = plan.roles
        put = Op("put", "put", (_port("features", "capture.features"),), (_port("features"),), STORE)
        get = Op("get", "get", (_port("features", "put.features"),), (_port("features"),), STORE)
        named = {op.name: op for op in role.ops}
        named["train"] = attrs.evolve(named["train"], inputs=(_port("features", "get.features"),))
        capture = (*(op for op in named.values() if isinstance(op.settings, SourceSettings | CaptureSettings)), put)
        trainer = (get, *(op for op in named.values() if op not in capture))
        roles = attrs.evolve(role, name="capture", ops=capture, ranks=servers), attrs.evolve(role, ops=trainer)
        service = Service("service", "HTTP with a token", 0, "GET /health", 60.0)
        processes = (
            Process("controller", (), "controller", services=(service,)),
            *(Process(f"server-{n}", ("capture",), "capture_server", services=(service,)) for n in range(servers)),
            Process("worker-0", (), "capture_worker"),
            Process("trainer", ("trainer",)),
        )
        return attrs.evolve(plan, roles=roles, processes=processes, control=Control(300.0, 3, 900.0, 1))

    def _source(self, name: str, path: str) -> Op:
        return Op(
            name, "prompts", (), (_port("rows"),), SourceSettings("prompts", path, 24, None, None, False, False, False)
        )

    def _file(self, name: str, use: str) -> DataFile:
        content = (self.base / name).read_bytes()
        return DataFile(name, use, len(content), hashlib.sha256(content).hexdigest())


FILES = {"config.json": "target config", "train.jsonl": "source", "heldout.jsonl": "source"}


def _batch(train: TrainSettings, ranks: int = 1) -> Batch:
    micro, packs = train.batch_documents, train.accumulation * ranks
    return Batch(
        micro_documents=micro,
        accumulation=train.accumulation,
        ranks=ranks,
        step_documents=None if micro is None else micro * packs,
        step_tokens_at_most=packs * (train.pack_tokens or micro * 24),
        epochs=train.epochs,
        max_steps=train.max_steps,
        schedule_steps=train.schedule_steps,
        warmup_steps=None,
        pack_tokens=train.pack_tokens,
    )


def _port(name: str, source: str = "") -> Port:
    return Port(name, Feature(name, 1, "int32"), source)


def _write_rows(path: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            length = chance.randint(8, 24)
            tokens = [min(int(chance.expovariate(0.05)) + 3, 95) for _ in range(length)]
            row = {"input_ids": tokens, "loss_mask": [int(t >= length // 3) for t in range(length)]}
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def train_settings() -> TrainSettings:
    """Training settings of the toy run; change them with attrs.evolve."""
    return TRAIN


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A folder with the toy's data and target config, and plans over it."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    _write_rows(tmp_path / "train.jsonl", 22, seed=1)
    _write_rows(tmp_path / "heldout.jsonl", 5, seed=2)
    return Toy(tmp_path)
