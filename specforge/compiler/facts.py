"""In: a loaded recipe and the world. Out: `Facts`, what the passes and the lowering read beside the graph."""

from __future__ import annotations

import attrs

from specforge.compiler.devices import DEVICES
from specforge.compiler.geometry import World
from specforge.dsl.recipe import Recipe
from specforge.dsl.target import Target
from specforge.plan import Device
from specforge.settings import Geometry

CAPTURE_TOKENS = 32768
MICRO_DOCUMENTS = 8


@attrs.frozen
class Facts:
    """The recipe, the world and what follows from both. `file` is the recipe's name in messages and origins."""

    recipe: Recipe
    world: World
    file: str

    @property
    def target(self) -> Target:
        return self.recipe.train.features.target

    @property
    def geometry(self) -> Geometry:
        return self.world.geometry(self.target)

    @property
    def device(self) -> Device:
        return DEVICES[self.recipe.topology.device]

    @property
    def target_dtype(self) -> str:
        """What the target computes in: as the engine says, else float32 on a CPU and bfloat16 on a GPU."""
        return self.recipe.topology.engine.dtype or self.natural_dtype

    @property
    def precision(self) -> str:
        """What the draft computes in, resolved in the same way."""
        return self.recipe.train.precision or self.natural_dtype

    @property
    def micro_documents(self) -> int | None:
        """Documents of a micro-step, None where it is filled by tokens."""
        train = self.recipe.train
        return None if train.pack_tokens is not None else train.batch_size or MICRO_DOCUMENTS

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-step, at most."""
        train = self.recipe.train
        return train.pack_tokens or (self.micro_documents or 0) * train.features.source.max_length

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        topology = self.recipe.topology
        return len(topology.gpus) if topology.gpus is not None else topology.ranks or 1

    @property
    def capture_documents(self) -> int:
        """Documents of one forward of the target. On a GPU a forward of few tokens costs as much as one of many."""
        train = self.recipe.train
        length = train.features.source.max_length
        micro = self.micro_documents or max(1, (train.pack_tokens or 0) // length)
        fill = 0 if self.device.name == "cpu" else CAPTURE_TOKENS // length
        return self.recipe.topology.engine.batch_size or max(micro, fill)

    @property
    def packed_capture(self) -> bool:
        """Whether a forward of the target takes documents end to end."""
        packed = self.recipe.topology.engine.packed
        return self.device.name == "cpu" if packed is None else packed

    @property
    def natural_dtype(self) -> str:
        return "float32" if self.device.name == "cpu" else "bfloat16"
