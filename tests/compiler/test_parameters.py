"""In: drafts that recipes describe. Out: the compiler's table of parameters is the module's state_dict."""

import attrs
import pytest
import torch

from specforge.compiler import compile, load
from specforge.runtime.draft.eagle3 import Eagle3Draft
from specforge.settings import DraftSettings

pytestmark = pytest.mark.cpu
DRAFTS = {
    "tiny": ("Capture(rows, target), Eagle3(), draft=Draft(vocab_size=128)", None),
    "the whole vocabulary": ("Capture(rows, target), Eagle3()", None),
    "fc_norm": ("Capture(rows, target), Eagle3(fc_norm=True)", None),
    "norm_output": ("Capture(rows, target), Eagle3(fc_norm=True, norm_output=True)", None),
    "one key-value head": ("Capture(rows, target), Eagle3(), draft=Draft(num_heads=6, num_kv_heads=1)", None),
    "other sizes": ("Capture(rows, target), Eagle3(), draft=Draft(intermediate_size=80, head_dim=24)", None),
    "bfloat16": ("Capture(rows, target), Eagle3(), precision='bfloat16'", None),
    "8B": (
        "Capture(rows, target), Eagle3()",
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 36,
            "head_dim": 128,
            "vocab_size": 151936,
        },
    ),
}


def module_table(draft: DraftSettings) -> list[tuple[str, tuple[int, ...], str, bool]]:
    """Name, shape, dtype and whether it is trained, of everything in the module's state_dict; no memory is used."""
    with torch.device("meta"):
        module = Eagle3Draft(draft).to(getattr(torch, draft.dtype))
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return [
        (name, tuple(t.shape), str(t.dtype).removeprefix("torch."), name in trained)
        for name, t in module.state_dict().items()
    ]


@pytest.mark.parametrize("name", DRAFTS)
def test_the_table_is_the_state_dict(write, name):
    train, config = DRAFTS[name]
    draft = compile(load(write(train, config=config))).op("train").settings.draft
    assert sorted(attrs.astuple(p) for p in draft.parameters) == sorted(module_table(draft))


def test_the_table_of_smollm2_is_the_state_dict(write):
    path = write(rest="topology=Colocated(device='H200')")
    path.write_text(
        path.read_text().replace(
            'Target("tiny", config="tiny.json", random_weights=True)',
            'Target("HuggingFaceTB/SmolLM2-135M-Instruct")',
        )
    )
    draft = compile(load(path)).op("train").settings.draft
    assert (draft.num_heads, draft.num_kv_heads, draft.dtype) == (9, 3, "bfloat16")
    assert sorted(attrs.astuple(p) for p in draft.parameters) == sorted(module_table(draft))


def test_bytes_of_a_parameter(plan):
    for parameter in plan.op("train").settings.draft.parameters:
        tensor = torch.empty(parameter.shape, dtype=getattr(torch, parameter.dtype), device="meta")
        assert parameter.bytes == tensor.numel() * tensor.element_size()
