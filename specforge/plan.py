"""In: what the compiler decided. Out: `Plan`, the only thing the runtime reads; dump, load, digest. No torch here."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

import attrs
import cattrs

from specforge.dsl.feature import Feature
from specforge.settings import SETTINGS, Settings, TargetSettings

SCHEMA = 2
T = TypeVar("T")


class PlanError(ValueError):
    """A plan file that cannot be run: not a plan, of another schema, or its digest does not match its content."""


@attrs.frozen
class Port:
    """One end of a typed edge. An input names where it comes from in `source`, as "operation.port"."""

    name: str
    feature: Feature
    source: str = ""


@attrs.frozen
class Op:
    """One operation of a role, in the order it runs. `kind` is the lower-case name of the node it came from."""

    name: str
    kind: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    settings: Settings


@attrs.frozen
class Role:
    """What one kind of worker does. `ranks`: how many processes do it at once, on `gpus` where these are named."""

    name: str
    device: str
    ranks: int
    engine: str
    target_dtype: str
    ops: tuple[Op, ...]
    gpus: tuple[int, ...] = ()


@attrs.frozen
class Service:
    """What a process offers the others. `port` 0: a free one is taken at start. `readiness`: how it is asked whether it
    is there, for at most `timeout_s` seconds.
    """

    name: str
    protocol: str
    port: int
    readiness: str
    timeout_s: float


@attrs.frozen
class Process:
    """One process of the run, and the roles it holds.

    `kind`: "run" (what the user started), "controller", "capture_server", "capture_worker", "trainer",
    "recorder" or "store".
    `url`: where it is already, if the run does not start it. `command`: what it is started with beside what follows
    from the plan: an interpreter, and flags.
    """

    name: str
    roles: tuple[str, ...]
    kind: str = "trainer"
    gpus: tuple[int, ...] = ()
    services: tuple[Service, ...] = ()
    url: str | None = None
    command: tuple[str, ...] = ()


@attrs.frozen
class Control:
    """Bounds of what keeps capture and training in step: a lease of a capture batch, how often a failing one is tried,
    and how long a trainer waits while nothing changes.
    """

    lease_s: float
    attempts: int
    patience_s: float
    workers_per_server: int


@attrs.frozen
class Flow:
    """What an optimizer step of full documents asks of both sides.

    FLOPs are the computed ones of the step, over all devices. `bytes_per_token`: of captured features. `wire`: whether
    they leave the process.
    """

    capture_flops: int
    capture_devices: int
    train_flops: int
    train_devices: int
    bytes_per_token: int
    step_tokens: int
    wire: bool


@attrs.frozen
class DataFile:
    """A file the run reads, identified by size and content. `path` is relative to the plan's base."""

    path: str
    use: str
    bytes: int
    sha256: str


@attrs.frozen
class Batch:
    """Batch arithmetic. None: known after preparation (it needs tokenised lengths), or not used.

    A micro-step is `micro_documents` documents, or as many as fit `pack_tokens` tokens.
    """

    micro_documents: int | None
    accumulation: int
    ranks: int
    step_documents: int | None
    step_tokens_at_most: int
    epochs: int
    max_steps: int | None
    schedule_steps: int | None
    warmup_steps: int | None
    pack_tokens: int | None = None


@attrs.frozen
class MemoryPart:
    """Resident bytes of one part of one rank. `exact`: counted from shapes; else an upper estimate."""

    role: str
    name: str
    bytes: int
    exact: bool
    note: str


@attrs.frozen
class FlopPart:
    """FLOPs (2 per multiply-add) of one part in one micro-step of full documents.

    `needed`: what the supervised rows cost. `computed`: what the chosen implementation does, counted as
    torch's FLOP counter counts it. Both at full length with every row supervised.
    """

    name: str
    needed: int
    computed: int


@attrs.frozen
class KernelChoice:
    """Which implementation an operation uses, and why."""

    op: str
    implementation: str
    reason: str


@attrs.frozen
class Device:
    """What the plan assumes of the device. Zero means unknown: no verdict is given."""

    name: str
    memory_bytes: int
    tflops: float
    gbytes_per_s: float


@attrs.frozen
class Origin:
    """Where a value came from: "recipe line 12", "default", "override" or "derived: why". Never in the digest."""

    path: str
    value: str
    source: str


@attrs.frozen
class Plan:
    """What will run. Equal recipes give equal plans, byte for byte.

    `base` (the folder that relative paths start from), `recipe` (the file) and `origins` tell where things came
    from and are not part of the digest. `output_dir` is relative to the folder the run is started in.
    """

    schema: int
    name: str
    seed: int
    output_dir: str
    target: TargetSettings
    device: Device
    roles: tuple[Role, ...]
    processes: tuple[Process, ...]
    files: tuple[DataFile, ...]
    batch: Batch
    memory: tuple[MemoryPart, ...]
    flops: tuple[FlopPart, ...]
    kernels: tuple[KernelChoice, ...]
    export_keys: tuple[str, ...]
    warnings: tuple[str, ...]
    base: str = ""
    recipe: str = ""
    origins: tuple[Origin, ...] = ()
    control: Control | None = None
    flow: Flow | None = None

    @property
    def digest(self) -> str:
        """sha256 (hex) of everything but where values came from."""
        content = _content(attrs.evolve(self, base="", recipe="", origins=()))
        return hashlib.sha256(content.encode()).hexdigest()

    def role(self, name: str) -> Role:
        """The role called `name`; KeyError with the known names."""
        found: Role = _named(self.roles, name, "role")
        return found

    def ops(self, kind: str | None = None) -> tuple[Op, ...]:
        """Every operation of every role in running order, or those of one `kind`."""
        return tuple(op for role in self.roles for op in role.ops if kind in (None, op.kind))

    def op(self, name: str) -> Op:
        """The operation called `name`; KeyError with the known names."""
        found: Op = _named(self.ops(), name, "operation")
        return found


def _named(items: tuple[Any, ...], name: str, what: str) -> Any:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(f"no {what} {name!r}; there are {', '.join(i.name for i in items)}")


def dump(plan: Plan) -> str:
    """The plan as JSON text with its digest; `load` gives an equal plan back."""
    body = json.loads(_content(plan))
    return json.dumps({"digest": plan.digest, **body}, indent=1, ensure_ascii=False) + "\n"


def load(text: str) -> Plan:
    """A plan from `dump`'s text. Raises PlanError where the text is no plan, is of another schema, or was edited."""
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or not {"digest", "schema"} <= body.keys():
            raise ValueError("it is JSON, and not an object with a digest and a schema")
        digest, schema = str(body.pop("digest")), body["schema"]
    except ValueError as error:
        raise PlanError(
            f"this file is not a plan ({error}); write one with: specforge compile RECIPE --out FILE"
        ) from None
    if schema != SCHEMA:
        raise PlanError(
            f"this plan has schema {schema}, this specforge reads schema {SCHEMA}; compile the recipe again"
        )
    try:
        plan = CONVERTER.structure(body, Plan)
    except Exception as error:
        first = cattrs.transform_error(error)[0]
        raise PlanError(
            f"this plan does not have the fields of schema {SCHEMA}: {first}; compile the recipe again"
        ) from None
    if plan.digest != digest:
        raise PlanError(
            f"this plan was edited after it was compiled (digest {plan.digest[:12]}, the file says {digest[:12]}); "
            "change the recipe, or use --set, and compile again"
        )
    return plan


def _content(plan: Plan) -> str:
    return json.dumps(CONVERTER.unstructure(plan), ensure_ascii=False)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)

    def unstructure_settings(value: Any) -> dict[str, Any]:
        return {"settings": type(value).__name__, **converter.unstructure(value)}

    def structure_settings(value: dict[str, Any], _: Any) -> Any:
        fields = dict(value)
        return converter.structure(fields, SETTINGS[fields.pop("settings")])

    converter.register_unstructure_hook(Settings, unstructure_settings)
    converter.register_structure_hook(Settings, structure_settings)
    return converter


CONVERTER = _converter()
