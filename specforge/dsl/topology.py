"""In: devices and engines. Out: `Colocated`: target and trainer in one process."""

from __future__ import annotations

from specforge.dsl.engine import Transformers
from specforge.dsl.node import field, node
from specforge.dsl.rule import node as a_node
from specforge.dsl.rule import text


@node
class Colocated:
    """Target and trainer share a process and a device: features never leave its memory.

    `device`: an entry of the device table, "cpu" or a GPU's name like "H200"; the plan's memory verdict assumes it.
    """

    engine: Transformers = field(a_node(Transformers), default=Transformers())
    device: str = field(text("a device's name"), default="cpu")
