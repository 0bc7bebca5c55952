"""In: a Picture and text widths. Out: `Layout`: where each box, label and bend stands; nothing overlaps.

Operations stand in rows by topological generation, labels in rows between them. An arrow that passes a row has a slot
of its own there, so that no line runs under a box or a label.
"""

from __future__ import annotations

import unicodedata

import attrs
import networkx

from specforge.compiler.picture import Arrow, OpBox, Picture

NAME_SIZE, TEXT_SIZE = 14, 11
LINE_HEIGHT, PADDING, GAP, ROW_GAP = 15, 12, 26, 30
HEADER, ROLE_TITLE, BEND_WIDTH = 62, 30, 8


@attrs.define(eq=False)
class Slot:
    """A place in a row: of an operation, of a label, or of a bend where neither is set. `x` is its middle, `y` its top.

    `before` and `after`: the slots that lines come from and go to.
    """

    row: int
    role: int
    width: float
    height: float = 0.0
    box: OpBox | None = None
    label: tuple[str, ...] = ()
    x: float = 0.0
    y: float = 0.0
    before: list[Slot] = attrs.field(factory=list)
    after: list[Slot] = attrs.field(factory=list)


@attrs.frozen
class RoleFrame:
    """Where a role's box stands."""

    title: str
    x: float
    width: float


@attrs.frozen
class Layout:
    """Slots in rows from left to right, frames of the roles, and the size of the whole."""

    slots: tuple[Slot, ...]
    frames: tuple[RoleFrame, ...]
    width: float
    height: float


def text_width(text: str, font_size: float) -> float:
    """At most what a usual sans-serif font takes: East Asian letters are square, others narrower."""
    return sum(font_size * (1.0 if unicodedata.east_asian_width(c) in "WF" else 0.58) for c in text)


def layout(shown: Picture) -> Layout:
    """Rows from the top down, each as high as its highest slot; roles side by side, each as wide as its widest row."""
    rows = _rows(shown)
    _order(rows)
    y = float(HEADER + ROLE_TITLE + PADDING)
    for row in rows:
        height = max(slot.height for slot in row)
        for slot in row:
            slot.height = slot.height if slot.box or slot.label else height
            slot.y = y + (height - slot.height) / 2
        y += height + ROW_GAP
    x, frames = float(GAP), []
    for at, role in enumerate(shown.roles):
        mine = [[slot for slot in row if slot.role == at] for row in rows]
        inner = max([text_width(role.title, NAME_SIZE), *(_width(row) for row in mine)])
        frames.append(RoleFrame(role.title, x, inner + 2 * PADDING))
        for row in mine:
            left = x + PADDING + (inner - _width(row)) / 2
            for slot in row:
                slot.x = left + slot.width / 2
                left += slot.width + GAP
        x += inner + 2 * PADDING + GAP
    header = max(text_width(shown.title, NAME_SIZE + 2), text_width(shown.subtitle, TEXT_SIZE)) + 2 * GAP
    slots = tuple(slot for row in rows for slot in row)
    return Layout(slots, tuple(frames), max(x, header), y - ROW_GAP + PADDING + GAP)


def _rows(shown: Picture) -> list[list[Slot]]:
    """Every slot in its row, joined along the arrows; row 2g holds generation g, row 2g + 1 labels."""
    roles = {role.name: at for at, role in enumerate(shown.roles)}
    graph = networkx.DiGraph([(a.source, a.target) for a in shown.arrows])
    graph.add_nodes_from(box.name for box in shown.boxes)
    generation = {n: g for g, names in enumerate(networkx.topological_generations(graph)) for n in names}
    rows: list[list[Slot]] = [[] for _ in range(2 * max(generation.values()) + 1)]
    boxes = {box.name: _box_slot(box, 2 * generation[box.name], roles[box.role]) for box in shown.boxes}
    for slot in boxes.values():
        rows[slot.row].append(slot)
    for arrow in shown.arrows:
        first, end = boxes[arrow.source], boxes[arrow.target]
        last = first
        for row in range(first.row + 1, end.row):
            slot = Slot(row, first.role, BEND_WIDTH) if row > first.row + 1 else _label_slot(arrow, first)
            rows[row].append(slot)
            last = _joined(last, slot)
        _joined(last, end)
    return rows


def _box_slot(box: OpBox, row: int, role: int) -> Slot:
    widths = [text_width(box.name, NAME_SIZE), *(text_width(line, TEXT_SIZE) for line in box.detail)]
    height = NAME_SIZE + LINE_HEIGHT * len(box.detail) + 2 * PADDING
    return Slot(row, role, max(widths) + 2 * PADDING, height, box=box)


def _label_slot(arrow: Arrow, source: Slot) -> Slot:
    width = max(text_width(line, TEXT_SIZE) for line in arrow.label) + PADDING
    return Slot(source.row + 1, source.role, width, LINE_HEIGHT * len(arrow.label) + PADDING / 2, label=arrow.label)


def _joined(source: Slot, target: Slot) -> Slot:
    source.after.append(target)
    target.before.append(source)
    return target


def _order(rows: list[list[Slot]]) -> None:
    """Sort each row by the middle of its neighbours' places, down and up in turn, so that few lines cross."""
    for sweep in range(8):
        down = sweep % 2 == 0
        place = {id(slot): at / len(row) for row in rows for at, slot in enumerate(row)}
        for row in rows if down else reversed(rows):

            def middle(slot: Slot) -> tuple[int, float]:
                near = slot.before if down else slot.after  # noqa: B023
                own = place[id(slot)]  # noqa: B023
                return slot.role, sum(place[id(n)] for n in near) / len(near) if near else own  # noqa: B023

            row.sort(key=middle)
            place.update({id(slot): (at + 0.5) / len(row) for at, slot in enumerate(row)})
    for slot in (slot for row in rows for slot in row):
        for ends, other in ((slot.before, -1), (slot.after, 1)):
            near = rows[slot.row + other] if ends else []
            ends.sort(key=near.index)


def _width(row: list[Slot]) -> float:
    return sum(slot.width for slot in row) + GAP * max(len(row) - 1, 0)
