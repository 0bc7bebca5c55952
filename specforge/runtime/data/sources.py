"""In: a target and its sources. Out: each source prepared, as a run and `specforge data` read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.cache import Preparation, prepared
from specforge.runtime.data.source import Prepared
from specforge.runtime.executor.work import AnySource
from specforge.runtime.recording.ckpt import read_ckpt
from specforge.runtime.recording.reader import read_recording
from specforge.runtime.target import load_tokenizer
from specforge.settings import CkptSettings, RecordedSettings, SourceSettings, TargetSettings


def prepare_sources(
    target: TargetSettings, base: Path, sources: Iterable[AnySource], cache: Path
) -> Iterator[tuple[AnySource, Prepared]]:
    """Each distinct source, tokenised now or found in the folder `cache`, one after another as they are asked for.

    Those of a recording were tokenised when it was made.

    Raises ValueError where the target's tokenizer is needed and not here, and what `prepare` raises.
    """
    distinct = dict.fromkeys(sources)
    tokenizer: PreTrainedTokenizerBase | None = None
    texts = [source for source in distinct if isinstance(source, SourceSettings)]
    if any(part.kind == "conversations" for source in texts for part in source.files):
        tokenizer = load_tokenizer(target, base)
    for source in distinct:
        if isinstance(source, CkptSettings):
            yield source, read_ckpt(base, source, target.geometry)[0]
            continue
        if isinstance(source, RecordedSettings):
            yield source, read_recording(base / source.path, source.path)[0]
            continue
        yield source, prepared(Preparation(source, base, tokenizer, target.geometry.vocab_size), cache)
