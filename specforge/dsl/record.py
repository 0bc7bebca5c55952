"""In: a capture and a folder. Out: `Record`: features are written there instead of trained on."""

from __future__ import annotations

from specforge.dsl.capture import Capture
from specforge.dsl.node import field, node
from specforge.dsl.rule import node as a_node
from specforge.dsl.rule import text, whole


@node
class Record:
    """Capture once, for any number of trainings that read `Recorded(path)`.

    `features`: a Capture with a policy, for no consumer says what it needs. `path`: the folder, relative to the recipe.
    A recording that was stopped goes on; a folder with features of other settings is refused. `nonfinite_budget`: rows
    with features that are not finite that are left out before the recording stops.
    """

    features: Capture = field(a_node(Capture, why="captured features: Capture(chats, target, Eagle3.policy(target))"))
    path: str = field(text("a folder"))
    nonfinite_budget: int = field(whole(0), default=0)
