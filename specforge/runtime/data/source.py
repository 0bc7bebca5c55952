"""In: `SourceSettings`, the base folder, a tokenizer. Out: `Prepared`, the documents of a source and a `Report`.

Legend: T tokens of a document.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import numpy as np
from transformers import PreTrainedTokenizerBase

from specforge.runtime.data.loss_mask import Rendered, token_mask
from specforge.runtime.data.pack import Document
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.data.prompts import prompt
from specforge.runtime.data.renderer import chat_template, rendered
from specforge.runtime.data.report import Report, Tally, counted, short
from specforge.runtime.data.row_fault import RowFault
from specforge.runtime.data.rows import Row, read_rows
from specforge.settings import SourceSettings

TOKENISE_ROWS = 256
UNSUPERVISED = "no supervised tokens"
ONLY_LAST = "only the last token is supervised, and it never counts: no token follows it"
UNSUPERVISED_TRUNCATED = "no supervised tokens left by max_length"


@attrs.frozen(eq=False)
class _Tokenised:
    """Token ids and loss mask of one row, whole. `text`: what was tokenised, "" for pre-tokenised rows."""

    number: int
    tokens_T: np.ndarray
    mask_T: np.ndarray
    text: str


def prepare(source: SourceSettings, base: Path, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> Prepared:
    """Read, tokenise, mask and truncate every row of a source; rows with a fault are dropped and counted by reason.

    With `source.strict` the first one found raises ValueError instead.
    `tokenizer` is needed by kind "conversations" only; `vocab_size` is the target's. Raises ValueError where the file
    cannot be read, where it has no rows, and where no row is left: that error shows a rendered row and its mask.
    """
    path = base / source.path
    tally, documents, numbers, read, truncated = Tally(source.path, source.strict), [], [], 0, 0
    first: Row | None = None
    shown: _Tokenised | None = None

    def counted() -> Iterator[Row]:
        nonlocal read, first
        for row in read_rows(path, source.max_rows):
            read, first = read + 1, first or row
            yield row

    if source.kind == "conversations":
        if tokenizer is None:
            raise ValueError(f"{source.path}: conversations need the target's tokenizer, and there is none")
        template = chat_template(source, tokenizer)
        tokenised = _conversations(rendered(counted(), source, template, tally), tokenizer)
    else:
        tokenised = _prompts(counted(), vocab_size, tally)
    for row in tokenised:
        shown = shown or row
        document = Document(len(documents), row.tokens_T[: source.max_length], row.mask_T[: source.max_length])
        if len(row.tokens_T) and (top := int(row.tokens_T.max())) >= vocab_size:
            detail = f"{top} is not in [0, {vocab_size}): the tokenizer is not this target's"
            tally.drop(row.number, "token id outside the vocabulary", detail)
        elif document.supervised == 0:
            cut = row.mask_T[:-1].any()
            detail = f"{len(row.tokens_T)} tokens, max_length {source.max_length}" if cut else ""
            reason = UNSUPERVISED_TRUNCATED if cut else ONLY_LAST if row.mask_T.any() else UNSUPERVISED
            tally.drop(row.number, reason, detail)
        else:
            truncated += len(row.tokens_T) > source.max_length
            documents.append(document)
            numbers.append(row.number)
    report = Report(
        path=source.path,
        rows=read,
        kept=len(documents),
        dropped=tally.dropped(),
        tokens=sum(len(d.tokens) for d in documents),
        supervised=sum(d.supervised for d in documents),
        truncated=truncated,
    )
    if first is None:
        raise ValueError(f"{path}: has no rows; give a file with at least one, and max_rows of at least 1")
    if not documents:
        raise ValueError(_nothing_left(source, report, first, shown))
    return Prepared(tuple(documents), tuple(numbers), report)


def _prompts(rows: Iterable[Row], vocab_size: int, tally: Tally) -> Iterator[_Tokenised]:
    for row in rows:
        try:
            yield _Tokenised(row.number, *prompt(row.value, vocab_size), "")
        except RowFault as fault:
            tally.drop(row.number, fault.reason, fault.detail)


def _conversations(
    texts_of_rows: Iterator[tuple[int, Rendered]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[_Tokenised]:
    while some := list(itertools.islice(texts_of_rows, TOKENISE_ROWS)):
        texts = [text.text for _, text in some]
        encoded = tokenizer(
            texts,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for (number, text), ids, offsets in zip(some, encoded["input_ids"], encoded["offset_mapping"]):
            mask_T = token_mask(text, np.array(offsets, np.int64).reshape(-1, 2))
            yield _Tokenised(number, np.array(ids, np.int32), mask_T, text.text)


def _nothing_left(source: SourceSettings, report: Report, first: Row, shown: _Tokenised | None) -> str:
    """The message for a source of which every row was dropped: the counts, one row as it is seen here, and the fix."""
    lost = "its only row was" if report.rows == 1 else f"all {report.rows:,} rows were"
    lines = [f"{source.path}: {lost} dropped, nothing is left to train on"]
    lines += [f"  {line}" for line in report.reasons()]
    if shown is None:
        lines += [f"row {first.number} of the file:", f"  {short(json.dumps(first.value, ensure_ascii=False))}"]
    elif shown.text:
        lines += [f"row {shown.number} renders to:", f"  {short(shown.text)}"]
    else:
        lines += [f"row {shown.number} holds the tokens:", f"  {short(str(shown.tokens_T.tolist()))}"]
    if shown is not None:
        lines += [f"its mask, {counted(len(shown.mask_T), 'token')} (1: supervised), cut at {source.max_length}:"]
        lines += [f"  {_runs(shown.mask_T)}"]
    return "\n".join([*lines, f"fix: {_fix(source, report.dropped[0].reason)}"])


def _fix(source: SourceSettings, reason: str) -> str:
    if reason == UNSUPERVISED_TRUNCATED:
        return f"raise max_length (now {source.max_length}), so that a reply fits in"
    if reason == "token id outside the vocabulary":
        return "use the tokenizer (or the token ids) of this target"
    if reason == ONLY_LAST:
        return "supervise a token before the last one"
    if source.kind == "prompts":
        return 'give every row "input_ids" and "loss_mask": lists of integers of one length, with ones in the mask'
    if source.preformatted:
        return 'rows are {"text": ...}, rendered by this chat template; leave preformatted out for rows of turns'
    if reason in ("template raised", UNSUPERVISED) or reason.startswith("prefix"):
        return "give a chat template that renders these turns, with generation markers: chat_template='...'"
    return (
        'rows are {"messages": [{"role", "content"}, ...]} or {"conversations": [{"from", "value"}, ...]}, '
        "user and assistant in turn, user first"
    )


def _runs(mask_T: np.ndarray) -> str:
    """A mask as runs: "31×0 12×1 2×0"."""
    runs = [(int(value), len(list(group))) for value, group in itertools.groupby(mask_T.tolist())]
    shown = " ".join(f"{count}×{value}" for value, count in runs[:20])
    return shown + (f" ... ({len(runs)} runs)" if len(runs) > 20 else "")
