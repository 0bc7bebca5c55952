"""In: a Picture. Out: an SVG document: roles as boxes, operations as rounded boxes, labelled arrows downwards."""

from __future__ import annotations

from html import escape

from specforge.compiler.layout import (
    HEADER,
    LINE_HEIGHT,
    NAME_SIZE,
    PADDING,
    ROLE_TITLE,
    TEXT_SIZE,
    Layout,
    Slot,
    layout,
)
from specforge.compiler.picture import Picture

INK, SOFT, LINE, FRAME, FILL = "#1f2933", "#52606d", "#7b8794", "#f5f7fa", "#e3eefb"
BORDER = "#4a7ab5"


def svg(shown: Picture) -> str:
    """The document; it needs no font but sans-serif and no script."""
    placed = layout(shown)
    width, height = f"{placed.width:.0f}", f"{placed.height:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f"<title>{_safe(shown.title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0.5 L8 4 L0 7.5 z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(shown.title, (26, 28), NAME_SIZE + 2, weight="bold"),
        _text(shown.subtitle, (26, 46), TEXT_SIZE, fill=SOFT),
        *_frames(placed),
        *(line for slot in placed.slots for line in _lines(slot)),
        *(line for slot in placed.slots for line in _slot(slot)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _frames(placed: Layout) -> list[str]:
    lines = []
    for frame in placed.frames:
        lines.append(
            f'<rect class="role" x="{frame.x:.1f}" y="{HEADER}" width="{frame.width:.1f}" '
            f'height="{placed.height - HEADER - 26:.1f}" fill="{FRAME}" stroke="{LINE}"/>'
        )
        lines.append(_text(frame.title, (frame.x + PADDING, HEADER + ROLE_TITLE - 8), NAME_SIZE, fill=SOFT))
    return lines


def _lines(slot: Slot) -> list[str]:
    """From a slot to those below it, and through the slot itself where it is a bend."""
    lines = []
    for at, below in enumerate(slot.after):
        x, y = _port(slot, at, len(slot.after)), slot.y + slot.height
        end_x, end_y = _port(below, below.before.index(slot), len(below.before)), below.y
        middle = (y + end_y) / 2
        head = ' marker-end="url(#arrow)"' if below.box else ""
        lines.append(
            f'<path d="M{x:.1f} {y:.1f} C{x:.1f} {middle:.1f} {end_x:.1f} {middle:.1f} {end_x:.1f} {end_y:.1f}" '
            f'fill="none" stroke="{LINE}" stroke-width="1.4"{head}/>'
        )
    if not slot.box and not slot.label:
        lines.append(
            f'<path d="M{slot.x:.1f} {slot.y:.1f} V{slot.y + slot.height:.1f}" fill="none" stroke="{LINE}" '
            'stroke-width="1.4"/>'
        )
    return lines


def _port(slot: Slot, at: int, count: int) -> float:
    """Where line `at` of `count` meets a slot: spread over a box, at the middle of anything else."""
    return slot.x + (slot.width * ((at + 1) / (count + 1) - 0.5) if slot.box else 0.0)


def _slot(slot: Slot) -> list[str]:
    if slot.box:
        y = slot.y + PADDING + NAME_SIZE - 3
        return [
            f'<rect class="operation" x="{slot.x - slot.width / 2:.1f}" y="{slot.y:.1f}" width="{slot.width:.1f}" '
            f'height="{slot.height:.1f}" rx="10" fill="{FILL}" stroke="{BORDER}"/>',
            _text(slot.box.name, (slot.x, y), NAME_SIZE, weight="bold", anchor="middle"),
            *_centred(slot.box.detail, slot.x, y + LINE_HEIGHT + 1),
        ]
    if slot.label:
        return [
            f'<rect class="label" x="{slot.x - slot.width / 2:.1f}" y="{slot.y:.1f}" width="{slot.width:.1f}" '
            f'height="{slot.height:.1f}" rx="4" fill="#ffffff" stroke="#cbd2d9"/>',
            *_centred(slot.label, slot.x, slot.y + LINE_HEIGHT - 1),
        ]
    return []


def _centred(rows: tuple[str, ...], x: float, y: float) -> list[str]:
    return [_text(row, (x, y + LINE_HEIGHT * at), TEXT_SIZE, anchor="middle") for at, row in enumerate(rows)]


def _text(
    text: str,
    at: tuple[float, float],
    font_size: int,
    *,
    fill: str = INK,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{font_size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{fill}">{_safe(text)}</text>'
    )


def _safe(text: str) -> str:
    """XML text; characters that XML forbids become spaces."""
    return escape("".join(c if c.isprintable() else " " for c in text))
