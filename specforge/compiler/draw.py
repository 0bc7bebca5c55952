"""In: a Plan and a file's name. Out: the plan as a picture: SVG, or mermaid text, by the name's suffix."""

from __future__ import annotations

from pathlib import PurePath

from specforge.compiler.picture import Picture, picture
from specforge.compiler.svg import svg
from specforge.plan import Plan


class UnknownPicture(ValueError):
    """A file name whose suffix says no format that can be drawn."""


def drawn(plan: Plan, file: str) -> str:
    """The text of the picture, the same for the same plan. Raises UnknownPicture for another suffix."""
    suffix = PurePath(file).suffix
    if suffix == ".svg":
        return svg(picture(plan))
    if suffix == ".mmd":
        return mermaid(picture(plan))
    raise UnknownPicture(f"--graph {file}: the suffix is {suffix!r}; name the file .svg, or .mmd for mermaid text")


def mermaid(shown: Picture) -> str:
    """A mermaid flowchart: a subgraph per role, a rounded box per operation, a label per edge."""
    names = {box.name: f"op{at}" for at, box in enumerate(shown.boxes)}
    lines = ["flowchart TB"]
    for at, role in enumerate(shown.roles):
        lines.append(f'  subgraph role{at}["{_quoted(role.title)}"]')
        for box in shown.boxes:
            if box.role == role.name:
                lines.append(f'    {names[box.name]}("{_quoted(box.name)}<br/>{_broken(box.detail)}")')
        lines.append("  end")
    for arrow in shown.arrows:
        lines.append(f'  {names[arrow.source]} -- "{_broken(arrow.label)}" --> {names[arrow.target]}')
    return "\n".join(lines) + "\n"


def _broken(rows: tuple[str, ...]) -> str:
    return "<br/>".join(_quoted(row) for row in rows)


def _quoted(text: str) -> str:
    """Text within mermaid's quotes; its entities begin with # and end with a semicolon."""
    known = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}
    return "".join(known.get(c, c if c.isprintable() else " ") for c in text)
