"""In: toy configs of every architecture that is counted exactly. Out: transformers' own count and prefill FLOPs."""

import json
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specforge.compiler.geometry import geometry_of
from specforge.compiler.parameter_count import active_layer_parameters, parameter_count

pytestmark = pytest.mark.cpu
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 96,
    "vocab_size": 80,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
PLAIN = {k: v for k, v in SIZES.items() if k != "head_dim"}
LATENT = PLAIN | {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 2,
    "topk_group": 2,
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 40,
}
CONFIGS = {
    "llama": SIZES | {"model_type": "llama"},
    "mistral, tied": SIZES | {"model_type": "mistral", "tie_word_embeddings": True},
    "qwen2": PLAIN | {"model_type": "qwen2"},
    "qwen3": SIZES | {"model_type": "qwen3"},
    "gemma2": SIZES | {"model_type": "gemma2"},
    "gemma3_text": SIZES | {"model_type": "gemma3_text"},
    "cohere2": PLAIN | {"model_type": "cohere2"},
    "granite": PLAIN | {"model_type": "granite"},
    "qwen3_moe": SIZES | EXPERTS | {"model_type": "qwen3_moe"},
    "qwen3_moe, every second": SIZES | EXPERTS | {"model_type": "qwen3_moe", "decoder_sparse_step": 2},
    "qwen3_moe, a dense layer": SIZES | EXPERTS | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 3]},
    "deepseek_v3": LATENT | {"model_type": "deepseek_v3"},
    "deepseek_v3, whole queries": LATENT | {"model_type": "deepseek_v3", "q_lora_rank": None},
    "deepseek_v3, two shared": LATENT | {"model_type": "deepseek_v3", "n_shared_experts": 2},
}


def model(config: dict, device: str) -> PreTrainedModel:
    loaded = AutoConfig.for_model(**config)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(loaded, attn_implementation="eager", experts_implementation="eager")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_that_of_transformers(name):
    found = model(CONFIGS[name], "meta")
    assert parameter_count(geometry_of(CONFIGS[name])) == sum(p.numel() for p in found.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_transformers_wrote_is_the_same_geometry(name, tmp_path):
    """It renames keys: Qwen3-MoE's num_experts is num_local_experts there."""
    AutoConfig.for_model(**CONFIGS[name]).save_pretrained(tmp_path)
    again = geometry_of(json.loads((tmp_path / "config.json").read_text()))
    geometry = geometry_of(CONFIGS[name])
    assert (again.experts, again.latent, again.head_dim) == (geometry.experts, geometry.latent, geometry.head_dim)


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_multiplies_the_active_parameters(name):
    """Norms hold parameters and multiply in no matmul, so ours is a little more."""
    geometry, found, tokens = geometry_of(CONFIGS[name]), model(CONFIGS[name], "cpu"), 16
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found.model(torch.arange(tokens)[None])
    latent, width = geometry.latent, geometry.head_dim
    pair = width + (latent.nope_dim + latent.rope_dim if latent else width)
    attention = 2 * geometry.num_layers * geometry.num_heads * pair * tokens**2
    ours = 2 * tokens * active_layer_parameters(geometry) + attention
    assert math.isclose(counter.get_total_flops(), ours, rel_tol=0.02)
