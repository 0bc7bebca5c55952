"""In: a target and its sources. Out: each source prepared, as a run and `specforge data` read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.cache import Preparation, prepared
from specforge.runtime.data.source import Prepared
from specforge.runtime.target import load_tokenizer
from specforge.settings import SourceSettings, TargetSettings


def prepare_sources(
    target: TargetSettings, base: Path, sources: Iterable[SourceSettings], cache: Path
) -> Iterator[tuple[SourceSettings, Prepared]]:
    """Each distinct source, tokenised now or found in the folder `cache`, one after another as they are asked for.

    Raises ValueError where the target's tokenizer is needed and not here, and what `prepare` raises.
    """
    distinct = dict.fromkeys(sources)
    tokenizer: PreTrainedTokenizerBase | None = None
    if any(part.kind == "conversations" for source in distinct for part in source.files):
        tokenizer = load_tokenizer(target, base)
    for source in distinct:
        yield source, prepared(Preparation(source, base, tokenizer, target.geometry.vocab_size), cache)
