"""In: a Plan. Out: `Picture`: the roles, boxes and arrows to draw, and their texts; not yet where they stand."""

from __future__ import annotations

import textwrap

import attrs

from specforge.compiler.columns import size
from specforge.compiler.show import document_length, settings_text
from specforge.plan import Op, Plan, Port
from specforge.settings import TrainSettings

DETAIL_WIDTH, DETAIL_LINES = 36, 3


@attrs.frozen
class RoleBox:
    """A role. `title`: its name, ranks, device and target."""

    name: str
    title: str


@attrs.frozen
class OpBox:
    """An operation. `detail`: what it does, in a few short lines."""

    name: str
    role: str
    detail: tuple[str, ...]


@attrs.frozen
class Arrow:
    """Everything one operation gives to another. `label`: a line per feature, with its size."""

    source: str
    target: str
    label: tuple[str, ...]


@attrs.frozen
class Picture:
    """In the plan's order."""

    title: str
    subtitle: str
    roles: tuple[RoleBox, ...]
    boxes: tuple[OpBox, ...]
    arrows: tuple[Arrow, ...]


def picture(plan: Plan) -> Picture:
    """What a picture of the plan shows. Sizes of features are of one document at full length."""
    roles = tuple(
        RoleBox(
            r.name,
            f"role {r.name}: {r.ranks} rank{'' if r.ranks == 1 else 's'} on {r.device}"
            + (f", target {r.target_dtype} in {r.engine}" if r.engine else ""),
        )
        for r in plan.roles
    )
    boxes = tuple(OpBox(op.name, r.name, _detail(plan, op)) for r in plan.roles for op in r.ops)
    labels: dict[tuple[str, str], list[str]] = {}
    for op in plan.ops():
        for port in op.inputs:
            labels.setdefault((port.source.partition(".")[0], op.name), []).append(_label(plan, op, port))
    return Picture(
        title=f"plan {plan.name}  {plan.digest[:16]}",
        subtitle=f"target {plan.target.name}; sizes: a feature of one document at full length, the draft's trained "
        "weights",
        roles=roles,
        boxes=boxes,
        arrows=tuple(Arrow(source, target, tuple(rows)) for (source, target), rows in labels.items()),
    )


def _detail(plan: Plan, op: Op) -> tuple[str, ...]:
    return tuple(textwrap.wrap(settings_text(plan, op), DETAIL_WIDTH, max_lines=DETAIL_LINES, placeholder=" …"))


def _label(plan: Plan, op: Op, port: Port) -> str:
    feature = port.feature
    if feature.width:
        return f"{feature.name} {size(feature.bytes_per_token * document_length(plan, op))}"
    settings = plan.op(port.source.partition(".")[0]).settings
    trained = settings.draft.parameters if isinstance(settings, TrainSettings) else ()
    return f"{feature.name} {size(sum(p.bytes for p in trained if p.trainable))}"
