"""In: numbers, words and rows. Out: text for a terminal: units, columns, at most `WIDTH` wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 120


def size(count: float) -> str:
    """Bytes in binary units: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def flops(count: float) -> str:
    """FLOPs in decimal units."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if count < 1000:
            return f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TFLOP"


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows with their cells in columns; the widest columns are clipped until the whole fits."""
    kept = [tuple(r) for r in rows]
    if not kept:
        return []
    widths = [max(len(row[i]) for row in kept) for i in range(len(kept[0]))]
    while sum(widths) + 2 * len(widths) > WIDTH:
        widths[widths.index(max(widths))] -= 1
    return ["  ".join(clipped(cell, w).ljust(w) for cell, w in zip(row, widths)).rstrip() for row in kept]


def clipped(text: str, width: int) -> str:
    """The text, its middle left out where it is too wide: both ends of a path or a list say most."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def wrapped(words: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < 112:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return [*(f"{line}," for line in lines[:-1]), *lines[-1:]]
