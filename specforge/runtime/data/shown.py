"""In: a document and a tokenizer. Out: `shown`, the document as rich text: what is supervised stands out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.text import Text
from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.pack import Document

SUPERVISED = "bold green"
REST = "dim"


def shown(document: Document, tokenizer: PreTrainedTokenizerBase | None, brackets: bool) -> Text:
    """The document decoded, special tokens included; without a tokenizer its token ids.

    Supervised spans are styled; with `brackets` they also stand in « and », for output that has no colours.
    """
    text = Text()
    for piece, supervised in _pieces(document, tokenizer):
        marked = f"«{piece}»" if supervised and brackets else piece
        text.append(marked, SUPERVISED if supervised else REST)
    return text


def _pieces(document: Document, tokenizer: PreTrainedTokenizerBase | None) -> Iterator[tuple[str, bool]]:
    """The runs of equal loss mask, as text."""
    end, before = 0, ""
    for supervised, run in itertools.groupby(document.loss_mask.tolist()):
        begin, end = end, end + len(list(run))
        if tokenizer is None:
            yield " " if begin else "", False
            yield " ".join(map(str, document.tokens[begin:end].tolist())), supervised
            continue
        # Decoded from the start each time: a run by itself would lose the space before its first word.
        through = tokenizer.decode(document.tokens[:end].tolist(), clean_up_tokenization_spaces=False)
        assert isinstance(through, str)
        yield through[len(before) :], supervised
        before = through
