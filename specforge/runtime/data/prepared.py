"""In: documents and their report. Out: `Prepared`, what a source became, and the one file that keeps it. No torch."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from specforge.runtime.data.pack import Document
from specforge.runtime.data.report import Report


@attrs.frozen(eq=False)
class Prepared:
    """The documents of a source in file order: `documents[i].index == i`, and it was row `rows[i]` of the file.

    `file`: where it is kept, None for what is in memory only. `parts`: of a mix the part that a document is from,
    by its place in `report.parts`; documents are part after part then, and may be there more than once.
    """

    documents: tuple[Document, ...]
    rows: tuple[int, ...]
    report: Report
    file: Path | None = None
    parts: tuple[int, ...] = ()

    def length(self, document: int) -> int:
        """Tokens of a document."""
        return len(self.documents[document].tokens)

    def describe(self, document: int) -> str:
        """How the user finds a document: "row 12 of chats.jsonl"."""
        report = self.report.parts[self.parts[document]] if self.parts else self.report
        return f"row {self.rows[document]} of {report.path}"


def to_bytes(made: Prepared) -> bytes:
    """The content of the file that `read_prepared` reads."""
    report = json.dumps(made.report.to_dict(), indent=1, ensure_ascii=False)
    return save(_arrays(made), metadata={"report": report})


def read_prepared(path: Path) -> Prepared:
    """What was kept in `path`. Raises ValueError where it is no such file."""
    try:
        with safe_open(path, framework="numpy") as file:
            report = Report.from_dict(json.loads(file.metadata()["report"]))
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} holds no prepared documents ({error}); remove it and start the run again") from None
    ends = np.cumsum(stored["lengths"])[:-1]
    pairs = zip(np.split(stored["tokens"], ends), np.split(stored["loss_mask"], ends))
    documents = tuple(Document(i, tokens, mask) for i, (tokens, mask) in enumerate(pairs))
    return Prepared(documents, tuple(stored["rows"].tolist()), report, path, tuple(stored["parts"].tolist()))


def _arrays(made: Prepared) -> dict[str, np.ndarray]:
    return {
        "tokens": np.concatenate([d.tokens for d in made.documents]),
        "loss_mask": np.concatenate([d.loss_mask for d in made.documents]),
        "lengths": np.array([len(d.tokens) for d in made.documents], np.int64),
        "rows": np.array(made.rows, np.int64),
        "parts": np.array(made.parts, np.int64),
    }
