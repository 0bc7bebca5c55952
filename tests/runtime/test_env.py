"""In: environment variables. Out: where the caches are."""

from pathlib import Path

import pytest

from specforge.runtime import env

pytestmark = pytest.mark.null
VARIABLES = ("SPECFORGE_CACHE", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HOME")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


@pytest.mark.parametrize(
    ("variables", "specforge", "hub"),
    [
        ({}, "/home/someone/.cache/specforge", "/home/someone/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/specforge", "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/specforge", "/home/someone/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "SPECFORGE_CACHE": "/s", "HF_HOME": "/h"}, "/s", "/h/hub"),
        ({"SPECFORGE_CACHE": "~/s", "HF_HOME": "/h", "HF_HUB_CACHE": "/hub"}, "/home/someone/s", "/hub"),
    ],
)
def test_the_most_specific_variable_wins(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], specforge: str, hub: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert (env.cache_folder(), env.hugging_face_cache()) == (Path(specforge), Path(hub))
