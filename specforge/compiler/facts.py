"""In: a loaded recipe and the world. Out: `Facts`, what the passes and the lowering read beside the graph."""

from __future__ import annotations

import attrs

from specforge.compiler.devices import DEVICES
from specforge.compiler.geometry import World
from specforge.dsl.capture import Capture
from specforge.dsl.engine import Engine, SGLang
from specforge.dsl.node import ReadBadValue
from specforge.dsl.recipe import Recipe
from specforge.dsl.source import Recorded, Source
from specforge.dsl.target import Target
from specforge.dsl.topology import Colocated, Disaggregated, Trainers
from specforge.dsl.train import Train
from specforge.plan import Device
from specforge.recording import Manifest
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
    def train(self) -> Train:
        """The training; a rule that asks for one that is not there has nothing to say (ReadBadValue)."""
        if self.recipe.train is None:
            raise ReadBadValue
        return self.recipe.train

    @property
    def features(self) -> Capture:
        """What is captured, or read: for the training, else for the recording."""
        if self.recipe.train is None and self.recipe.record is not None:
            return self.recipe.record.features
        return self.train.features

    @property
    def recording(self) -> Manifest | None:
        """What training reads instead of a capture; None where the target is run."""
        source = self.features.source
        return self.world.recording(source) if isinstance(source, Recorded) else None

    @property
    def max_length(self) -> int:
        """Tokens of a training document, at most."""
        return self.longest(self.features.source)

    def longest(self, source: Source) -> int:
        """Tokens of a source's document, at most."""
        return self.world.recording(source).longest if isinstance(source, Recorded) else source.max_length

    @property
    def target(self) -> Target:
        return self.features.target

    @property
    def geometry(self) -> Geometry:
        return self.world.geometry(self.target)

    @property
    def device(self) -> Device:
        return DEVICES[self.recipe.topology.device]

    @property
    def target_dtype(self) -> str:
        """What the target computes in: as the engine says, else float32 on a CPU and bfloat16 on a GPU."""
        return self.engine.dtype or self.natural_dtype

    @property
    def apart(self) -> bool:
        """Whether capture and training are processes of their own. Of recorded features there is no capture."""
        return isinstance(self.recipe.topology, Disaggregated) and not isinstance(self.features.source, Recorded)

    @property
    def disaggregated(self) -> Disaggregated:
        """The topology of a recipe whose processes are apart."""
        topology = self.recipe.topology
        assert isinstance(topology, Disaggregated)
        return topology

    @property
    def servers(self) -> tuple[Engine, ...]:
        """What runs the target."""
        topology = self.recipe.topology
        return topology.servers if isinstance(topology, Disaggregated) else (topology.engine,)

    @property
    def engine(self) -> Engine:
        """The first of them: what the others compute alike."""
        return self.servers[0]

    @property
    def trainers(self) -> Colocated | Trainers:
        """The node that says which processes train."""
        topology = self.recipe.topology
        return topology.trainers if isinstance(topology, Disaggregated) else topology

    @property
    def gpus(self) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each server, then of the trainers: those that are named, else the first that nobody names."""
        if self.device.name == "cpu":
            return ((),) * (len(self.servers) + 1)
        if not self.apart:
            return (self.trainers.gpus or (), self.trainers.gpus or ())
        given = [(s.gpus, (s.tp or 1) if isinstance(s, SGLang) else 1) for s in self.servers]
        given = [((), 0) if isinstance(s, SGLang) and s.url else g for s, g in zip(self.servers, given)]
        given.append((self.trainers.gpus, 1))
        named = {gpu for gpus, _ in given for gpu in gpus or ()}
        free = (gpu for gpu in range(1024) if gpu not in named)
        return tuple(tuple(next(free) for _ in range(count)) if gpus is None else gpus for gpus, count in given)

    @property
    def precision(self) -> str:
        """What the draft computes in, resolved in the same way."""
        return self.train.precision or self.natural_dtype

    @property
    def micro_documents(self) -> int | None:
        """Documents of a micro-step, None where it is filled by tokens."""
        train = self.train
        return None if train.pack_tokens is not None else train.batch_size or MICRO_DOCUMENTS

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-step, at most."""
        return self.train.pack_tokens or (self.micro_documents or 0) * self.max_length

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        trainers = self.trainers
        return len(trainers.gpus) if trainers.gpus is not None else trainers.ranks or 1

    @property
    def step_documents(self) -> int | None:
        """Documents of an optimizer step, None where micro-steps are filled by tokens."""
        micro = self.micro_documents
        return None if micro is None else micro * self.train.accumulation * self.ranks

    @property
    def capture_documents(self) -> int:
        """Documents of one forward of the target. On a GPU a forward of few tokens costs as much as one of many."""
        length = self.max_length
        if self.recipe.train is None:
            micro = MICRO_DOCUMENTS
        else:
            micro = self.micro_documents or max(1, (self.train.pack_tokens or 0) // length)
        fill = 0 if self.device.name == "cpu" else CAPTURE_TOKENS // length
        return getattr(self.engine, "batch_size", None) or max(micro, fill)

    @property
    def packed_capture(self) -> bool:
        """Whether a forward of the target takes documents end to end."""
        if isinstance(self.engine, SGLang):
            return False
        packed = self.engine.packed
        return self.device.name == "cpu" if packed is None else packed

    @property
    def natural_dtype(self) -> str:
        return "float32" if self.device.name == "cpu" else "bfloat16"
