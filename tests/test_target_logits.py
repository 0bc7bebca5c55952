"""In: configs that name what follows the head, or leave it out. Out: `Logits`, as transformers has them."""

import pytest
from transformers import AutoConfig

from specforge.settings import Logits
from specforge.target_logits import logits_of, unsupported

pytestmark = pytest.mark.cpu
TYPES = (
    "cohere",
    "cohere2",
    "gemma2",
    "gemma3_text",
    "vaultgemma",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "llama",
)


@pytest.mark.parametrize("kind", TYPES)
def test_a_key_that_is_absent_has_the_default_of_transformers(kind):
    made = AutoConfig.for_model(kind).to_dict()
    assert unsupported(made) is None
    assert logits_of({"model_type": kind}) == logits_of(made)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "cohere", "logit_scale": 0.5}, Logits(0.5)),
        ({"model_type": "cohere"}, Logits(0.0625)),
        ({"model_type": "granite", "logits_scaling": 8}, Logits(0.125)),
        ({"model_type": "gemma2"}, Logits(1.0, 30.0)),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, Logits()),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 20}, Logits(1.0, 20.0)),
        ({"model_type": "llama", "logit_scale": 1.0, "logits_scaling": 1}, Logits()),
    ],
)
def test_logits_are_read(config, expected):
    assert unsupported(config) is None
    assert logits_of(config) == expected


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "llama", "logit_scale": 0.5}, "logit_scale is 0.5"),
        ({"model_type": "hyperclovax", "logits_scaling": 0.1}, "logits_scaling is 0.1"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"model_type": "falcon_h1", "lm_head_multiplier": 0.5}, "lm_head_multiplier is 0.5"),
        ({"model_type": "gemma2", "mup_width_multiplier": 8.0}, "mup_width_multiplier is 8.0"),
        ({"model_type": "minicpm3", "dim_model_base": 256, "hidden_size": 2560}, "dim_model_base is 256"),
    ],
)
def test_what_is_not_known_is_named(config, what):
    assert unsupported(config) == what
