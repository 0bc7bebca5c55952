"""In: where features wait between capture and training. Out: `SharedDir` and `Mooncake`."""

from __future__ import annotations

from specforge.dsl.node import field, node
from specforge.dsl.rule import address, choice, number, text

MOST_GIB = 1_000_000.0


@node
class SharedDir:
    """A folder that capture servers and trainers see. `path`: None: "features" in the run's folder.

    `max_gib`: what it may hold; None: what the watermarks ask for.
    """

    path: str | None = field(text("a folder"), default=None, optional=True)
    max_gib: float | None = field(number(0.0, MOST_GIB, above=True), default=None, optional=True)


@node
class Mooncake:
    """Mooncake's distributed store. `master`: HOST:PORT of one that runs already; None: the run starts it.

    `max_gib`: memory of its segments; None: what the watermarks ask for. `protocol`: how tensors travel.
    """

    master: str | None = field(address(), default=None, optional=True)
    max_gib: float | None = field(number(0.0, MOST_GIB, above=True), default=None, optional=True)
    protocol: str = field(choice("tcp", "rdma"), default="tcp")


Store = SharedDir | Mooncake
STORES = (SharedDir, Mooncake)
