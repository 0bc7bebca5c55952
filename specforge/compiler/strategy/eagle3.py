"""In: a target's Geometry and the recipe's sizes. Out: what EAGLE3 needs, its parameters and its exported names.

Names and shapes follow the public checkpoints (arXiv 2503.01840); H hidden size, Ht one captured layer's width.
"""

from __future__ import annotations

import attrs

from specforge.compiler.draft_heads import draft_heads
from specforge.compiler.facts import Facts
from specforge.dsl.capture import Policy
from specforge.dsl.feature import Feature
from specforge.settings import DraftSettings, Eagle3Settings, Geometry, Parameter

ARCHITECTURE = "LlamaForCausalLMEagle3"
LAYERS = 3
DEFAULT_DRAFT_VOCABULARY = 32_000


@attrs.frozen
class Eagle3Knowledge:
    """What the compiler knows of EAGLE3."""

    name: str = "eagle3"
    architecture: str = ARCHITECTURE

    def layers(self, geometry: Geometry) -> tuple[int, ...]:
        """The layers captured by default: one low, one in the middle, one high (ids of layer outputs)."""
        count = geometry.num_layers
        return (1, count // 2 - 1, count - 4)

    def needs(self, geometry: Geometry, policy: Policy | None, dtype: str) -> tuple[Feature, ...]:
        """The features that training reads, with the policy's layers where it names some."""
        layers = policy.layers if policy is not None and policy.layers is not None else self.layers(geometry)
        kept = policy.dtype if policy is not None and policy.dtype is not None else dtype
        return (
            Feature("aux", len(layers) * geometry.hidden_size, kept, layers=layers, norm="pre"),
            Feature("last_hidden", geometry.hidden_size, kept, norm="post"),
        )

    def settings(self, facts: Facts) -> Eagle3Settings:
        options = facts.train.strategy
        return Eagle3Settings(
            ttt_length=options.ttt_length,
            position_decay=float(options.position_decay),
            reduction="padded" if options.reduction == "rows" and not facts.train.packing else options.reduction,
            lk=options.lk,
            kl_scale=float(options.kl_scale),
            kl_decay=float(options.kl_decay),
            recompute=facts.train.gradient_checkpointing,
        )

    def draft(self, facts: Facts, aux_layers: tuple[int, ...]) -> DraftSettings:
        """The draft, resolved: what the recipe leaves out is its config's, else the target's."""
        geometry, wanted, options = facts.geometry, facts.train.draft, facts.train.strategy
        config = facts.world.draft(wanted)
        own = geometry if config is None else config.geometry
        heads = draft_heads(geometry, None if config is None else own)
        vocabulary = min(DEFAULT_DRAFT_VOCABULARY, geometry.vocab_size)
        if config is not None:
            vocabulary = config.draft_vocab_size or geometry.vocab_size
        settings = DraftSettings(
            architecture=ARCHITECTURE,
            hidden_size=geometry.hidden_size,
            intermediate_size=wanted.intermediate_size or own.intermediate_size,
            num_heads=wanted.num_heads or heads.num_heads,
            num_kv_heads=wanted.num_kv_heads or heads.num_kv_heads,
            head_dim=wanted.head_dim or heads.head_dim,
            vocab_size=geometry.vocab_size,
            draft_vocab_size=wanted.vocab_size or vocabulary,
            target_hidden_size=geometry.hidden_size,
            aux_layers=aux_layers,
            rms_norm_eps=own.rms_norm_eps,
            hidden_act=own.hidden_act,
            rope=own.rope,
            max_position_embeddings=geometry.max_position_embeddings,
            fc_norm=options.fc_norm,
            norm_output=options.norm_output,
            dtype=facts.precision,
            initializer_range=own.initializer_range,
            parameters=(),
            weights=wanted.weights,
        )
        return attrs.evolve(settings, parameters=parameters(settings))

    def export_keys(self, draft: DraftSettings, format: str) -> tuple[str, ...]:
        """Names in the exported safetensors file: SGLang shares the target's embedding, transformers wants it."""
        names = [p.name for p in draft.parameters]
        return tuple(n for n in names if format == "hf" or n != "embed_tokens.weight")


def parameters(draft: DraftSettings) -> tuple[Parameter, ...]:
    """The state_dict: every name with its shape and dtype, in the module's order."""
    hidden, width, vocabulary = draft.hidden_size, draft.target_hidden_size, draft.draft_vocab_size
    queries, keys, inner = (
        draft.num_heads * draft.head_dim,
        draft.num_kv_heads * draft.head_dim,
        draft.intermediate_size,
    )
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (draft.vocab_size, hidden)}
    shapes["fc.weight"] = (hidden, len(draft.aux_layers) * width)
    if draft.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(len(draft.aux_layers))}
    shapes |= {
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    weights = [Parameter(n, s, draft.dtype, trainable=n != "embed_tokens.weight") for n, s in shapes.items()]
    maps = [Parameter("d2t", (vocabulary,), "int64", False), Parameter("t2d", (draft.vocab_size,), "bool", False)]
    return (*weights, *maps)
