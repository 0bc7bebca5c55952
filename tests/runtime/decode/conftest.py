"""In: nothing. Out: toy targets whose greedy text wanders, and an oracle that proposes what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest
import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from specforge.runtime.decode.choice import Proposal
from specforge.runtime.decode.proposer import Verified
from specforge.runtime.target import TargetModel
from specforge.settings import DraftSettings, Geometry, Parameter, TargetSettings
from specforge.target_logits import logits_of

VOCAB, HIDDEN, LAYERS, POSITIONS = 128, 32, 4, 96
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
}


def _eager(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    config._attn_implementation = "eager"
    return kind(config)


TARGETS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7)),
    "qwen3-sliding": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, sliding_window=7, use_sliding_window=True, max_window_layers=2)
    ),
    "gemma2": lambda: _eager(
        Gemma2ForCausalLM, Gemma2Config(**SHAPE, sliding_window=7, final_logit_softcapping=5.0, query_pre_attn_scalar=8)
    ),
    "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**SHAPE, sliding_window=7)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=7.0, embedding_multiplier=3.0)),
    "qwen3-experts": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    ),
    "latent": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**SHAPE | LATENT)),
}
GEOMETRY = Geometry(
    architecture="LlamaForCausalLM",
    model_type="llama",
    hidden_size=HIDDEN,
    num_layers=LAYERS,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=VOCAB,
    max_position_embeddings=POSITIONS,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    rope={"rope_type": "default", "rope_theta": 10000.0},
    tied_embeddings=False,
    bos_token_id=None,
    eos_token_ids=(),
    pad_token_id=None,
    initializer_range=0.4,
    weights_dtype="float32",
)


def _draft_settings(**changes: object) -> DraftSettings:
    width, draft_vocab, heads = 48, int(changes.pop("draft_vocab_size", 50)), 4
    fc_norm = bool(changes.get("fc_norm", False))
    shapes = {
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "midlayer.self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (16, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (16, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "midlayer.mlp.gate_proj.weight": (width, HIDDEN),
        "midlayer.mlp.up_proj.weight": (width, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, width),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (draft_vocab, HIDDEN),
        **({f"fc_norm.{i}.weight": (HIDDEN,) for i in range(3)} if fc_norm else {}),
    }
    settings = DraftSettings(
        architecture="LlamaForCausalLMEagle3",
        hidden_size=HIDDEN,
        intermediate_size=width,
        num_heads=heads,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=draft_vocab,
        target_hidden_size=HIDDEN,
        aux_layers=(0, 1, 3),
        rms_norm_eps=1e-6,
        hidden_act="silu",
        rope={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=POSITIONS,
        fc_norm=False,
        norm_output=False,
        dtype="float32",
        initializer_range=0.2,
        parameters=(
            *(Parameter(n, s, "float32", n != "embed_tokens.weight") for n, s in shapes.items()),
            Parameter("d2t", (draft_vocab,), "int64", False),
            Parameter("t2d", (VOCAB,), "bool", False),
        ),
    )
    return attrs.evolve(settings, **changes)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Toys are too small to share: two threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def draft_settings() -> Callable[..., DraftSettings]:
    """Settings of a draft for the toy targets; keywords change them."""
    return _draft_settings


@pytest.fixture(scope="session")
def toy_target() -> Callable[..., TargetModel]:
    """`toy_target(name)`: the same random target every time, float32 on the CPU."""
    made: dict[str, TargetModel] = {}

    def make(name: str) -> TargetModel:
        if name not in made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                model = TARGETS[name]()
            geometry = attrs.evolve(GEOMETRY, logits=logits_of(model.config.to_dict()))
            settings = TargetSettings(name, None, "config.json", 0, geometry, 0)
            made[name] = TargetModel(model.eval().requires_grad_(False), settings, None)
        return made[name]

    return make


@attrs.define(eq=False)
class Oracle:
    """Knows each row's text and proposes it, but a wrong token wherever `wrong(row, position)` says so."""

    texts: Sequence[Sequence[int]]
    draft_tokens: int
    wrong: Callable[[int, int], bool] = lambda row, position: False
    seen: list[Verified] = attrs.Factory(list)

    def propose(self, verified: Verified) -> Proposal:
        self.seen.append(verified)
        drafts = torch.zeros(len(self.texts), self.draft_tokens, dtype=torch.long)
        for row, text in enumerate(self.texts):
            begin = int(verified.positions_BS[row, verified.counts_B[row] - 1]) + 2
            for k in range(self.draft_tokens):
                true = text[begin + k] if begin + k < len(text) else 0
                drafts[row, k] = (true + 1) % VOCAB if self.wrong(row, begin + k) else true
        return Proposal(drafts)


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle
