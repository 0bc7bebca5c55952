"""In: a plan that records. Out: a folder of features, whole once its manifest is there. The door of a recording.

Documents are captured in file order, a shard at a time; a shard that is there is not captured again. The run folder
holds the plan and the tokenised rows, as that of a training.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console

from specforge import plan as plans
from specforge.dsl.feature import DTYPE_BYTES
from specforge.plan import Plan
from specforge.recording import (
    MANIFEST,
    Conditions,
    Manifest,
    Missing,
    RecordingError,
    ShardEntry,
    differences,
    manifest_text,
    read_manifest,
)
from specforge.runtime.capture.caught import Capturing
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.checkpoint.save import write_text
from specforge.runtime.data.batch import Features
from specforge.runtime.data.cache import Preparation, prepared
from specforge.runtime.data.prepared import Prepared
from specforge.runtime.executor.capture_feed import Capturer
from specforge.runtime.executor.work import RecordWork, record_work
from specforge.runtime.memory import memory
from specforge.runtime.preflight import preflight, torch_device
from specforge.runtime.recording.ckpt import CkptFeatures, read_ckpt
from specforge.runtime.recording.shard import (
    Recorded,
    damaged,
    read_documents,
    read_entry,
    read_shard_conditions,
    shard_name,
    write_shard,
)
from specforge.runtime.recording.sharding import SHARD_BYTES, Shard, shards
from specforge.runtime.recording.weights import fingerprint
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.target import Placement, load_target, load_tokenizer
from specforge.runtime.train.interrupt import Interrupt, Stop
from specforge.settings import CkptSettings

INTERRUPTED = 130


@attrs.frozen
class RecordResult:
    """How a recording ended. `exit_code`: 0 whole, 130 interrupted after `documents`. `missing`: rows left out."""

    exit_code: int
    folder: Path
    documents: int
    tokens: int
    missing: tuple[Missing, ...]


def record(plan: Plan, console: Console | None = None, shard_bytes: int = SHARD_BYTES) -> RecordResult:
    """Record into the plan's folder (relative to its base), from the start or after the last whole shard.

    SIGINT and SIGTERM finish the shard and give exit code 130. Raises ValueError (PreflightError, RecordingError, or a
    fault of the data or the target) for what a user can mend.
    """
    console = console or Console(stderr=True)
    run, work = RunFolder(Path(plan.output_dir)), record_work(plan)
    folder = Path(plan.base, work.record.path)
    with run.locked(), RunFolder(folder).locked():
        preflight(plan, run.path)
        write_text(run.plan, plans.dump(plan))
        rows = _rows(plan, work, run)
        console.print(rows.prepared.report.text(), markup=False, highlight=False, soft_wrap=True)
        parts = _shards(plan, work, rows.prepared, shard_bytes)
        recorder = _Recorder(plan, work, folder, console, rows, _conditions(plan, work, rows), parts)
        with memory(
            f"{plan.name} was recorded",
            "Lower topology.engine.batch_size or the source's max_length; if another program holds the memory, end it. "
            f"Then run this again: it goes on after the last shard in {folder}",
        ):
            return recorder.run()


@attrs.frozen(eq=False)
class _Rows:
    """What is recorded: documents, where their features come from (None: the target), digests of rows and tokenizer."""

    prepared: Prepared
    files: CkptFeatures | None
    digest: str
    tokenizer: str


def _rows(plan: Plan, work: RecordWork, run: RunFolder) -> _Rows:
    base, geometry, source = Path(plan.base), plan.target.geometry, work.source
    if isinstance(source, CkptSettings):
        return _Rows(*read_ckpt(base, source, geometry), tokenizer="")
    tokenizer = load_tokenizer(plan.target, base) if source.kind == "conversations" else None
    preparation = Preparation(source, base, tokenizer, geometry.vocab_size)
    return _Rows(prepared(preparation, run.prepared), None, preparation.key, preparation.tokenizer_digest)


def _shards(plan: Plan, work: RecordWork, made: Prepared, shard_bytes: int) -> tuple[Shard, ...]:
    lengths = [made.length(i) for i in range(len(made.documents))]
    return shards(lengths, work.capture.batch_documents, bytes_per_token(plan, work), shard_bytes)


def bytes_per_token(plan: Plan, work: RecordWork) -> int:
    """What a token's features take on the disk."""
    width = (len(work.capture.layers) + work.capture.last_hidden) * plan.target.geometry.hidden_size
    return width * DTYPE_BYTES[work.capture.dtype]


def _conditions(plan: Plan, work: RecordWork, rows: _Rows) -> Conditions:
    """Of files that were captured elsewhere it is not known how: computed in "", 0 documents together."""
    geometry, target, here = plan.target.geometry, plan.target, rows.files is None
    (config,) = (file.sha256 for file in plan.files if file.path == target.config)
    return Conditions(
        target=target.name,
        seed=target.random_seed,
        config=config,
        hidden_size=geometry.hidden_size,
        num_layers=geometry.num_layers,
        vocab_size=geometry.vocab_size,
        layers=work.capture.layers,
        last_hidden=work.capture.last_hidden,
        dtype=work.capture.dtype,
        computed=work.role.target_dtype if here else "",
        source=rows.digest,
        tokenizer=rows.tokenizer,
        batch_documents=work.capture.batch_documents if here else 0,
        packed=work.capture.packed,
        weights=fingerprint(target, Path(plan.base)) if here else "",
    )


@attrs.frozen(eq=False)
class _Recorder:
    """One recording, its rows prepared."""

    plan: Plan
    work: RecordWork
    folder: Path
    console: Console
    rows: _Rows
    conditions: Conditions
    shards: tuple[Shard, ...]

    @property
    def prepared(self) -> Prepared:
        return self.rows.prepared

    def run(self) -> RecordResult:
        self._refuse_others()
        found: list[ShardEntry] = []
        for number in range(len(self.shards)):
            path = self.folder / shard_name(number)
            if not path.exists():
                break
            found.append(self._entry(path, self.shards[number]))
        if (self.folder / MANIFEST).exists() and read_manifest(self.folder).shards == tuple(found):
            self._say(f"{self.folder}: these features are recorded already")
            return self._result(found, 0)
        if found:
            self._say(f"going on after {len(found)} of {len(self.shards)} shards in {self.folder}")
        self._count(found)
        self._room(self.shards[len(found) :])
        with Interrupt() as stop:
            self._capture(found, stop)
        if len(found) < len(self.shards):
            self._say(f"interrupted after {len(found)} of {len(self.shards)} shards; run it again to go on")
            return self._result(found, INTERRUPTED)
        if not sum(entry.documents for entry in found):
            raise RecordingError(f"{self.folder}: every row is missing, so there is nothing to train on")
        manifest = Manifest(self.conditions, self.prepared.report.path, tuple(found))
        write_text(self.folder / MANIFEST, manifest_text(manifest))
        return self._result(found, 0)

    def _entry(self, path: Path, shard: Shard) -> ShardEntry:
        """A shard that is there. Raises RecordingError where it holds other rows than it would be given now."""
        entry, rows = read_entry(path), read_documents(path)[3].tolist()
        if sorted([*rows, *(one.row for one in entry.missing)]) != [self.prepared.rows[i] for i in shard.documents]:
            raise damaged(path, "it holds other rows")
        return entry

    def _room(self, shards: Sequence[Shard]) -> None:
        """Raise RecordingError where the disk does not hold what is still to come."""
        documents = [document for shard in shards for document in shard.documents]
        need = bytes_per_token(self.plan, self.work) * sum(map(self.prepared.length, documents))
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise RecordingError(
                f"{self.folder} has {free / 2**30:.1f} GiB free, and the features of {len(documents):,} documents take "
                f"{need / 2**30:.1f} GiB; free space, record into another folder, or read fewer rows (max_rows)"
            )

    def _refuse_others(self) -> None:
        """A folder holds shards of one recording: these conditions, or it is refused with what differs."""
        others = [read_manifest(self.folder).conditions] if (self.folder / MANIFEST).exists() else []
        others += [read_shard_conditions(path) for path in sorted(self.folder.glob("shard-*.safetensors"))[:1]]
        for other in others:
            if found := differences(other, self.conditions):
                raise RecordingError(
                    f"{self.folder} holds features of other settings; these differ (its value -> yours):\n"
                    + "\n".join(f"  {line}" for line in found)
                    + "\nUndo these changes to go on with it, or record into another folder: Record(..., path=...)"
                )

    def _capture(self, found: list[ShardEntry], stop: Stop) -> None:
        if len(found) == len(self.shards):
            return
        capturer = self.rows.files or self._target()
        for number in range(len(found), len(self.shards)):
            if stop.requested:
                return
            inside, missing = self._shard(capturer, self.shards[number])
            entry = attrs.evolve(_empty(number), missing=tuple(missing))
            self._count([*found, entry])
            found.append(write_shard(self.folder / shard_name(number), self.conditions, inside, missing))
            self._say(f"shard {number + 1} of {len(self.shards)}: {sum(e.documents for e in found):,} documents")

    def _target(self) -> Capturing:
        role, settings = self.work.role, self.work.capture
        device = torch_device(role)
        target = load_target(self.plan.target, Path(self.plan.base), Placement(str(device), role.target_dtype))
        engine = TransformersEngine(target, settings)
        if engine.note:
            self._say(engine.note)
        return Capturer(engine, settings.batch_documents)

    def _shard(self, capturer: Capturing, shard: Shard) -> tuple[list[Recorded], list[Missing]]:
        inside: list[Recorded] = []
        missing: list[Missing] = []
        for batch in shard.batches:
            caught = capturer.capture(self.prepared, batch)
            lost = {hole.document: hole.reason for hole in caught.holes}
            for i in batch:
                row = self.prepared.rows[i]
                if i in lost:
                    missing.append(Missing(row, lost[i]))
                else:
                    inside.append(Recorded(self.prepared.documents[i], row, _on_host(caught.features[i])))
        return inside, missing

    def _count(self, found: Sequence[ShardEntry]) -> None:
        """Name the rows that are missing. Raises RecordingError where they are more than the budget."""
        missing, budget = [one for entry in found for one in entry.missing], self.work.record.nonfinite_budget
        origin = self.prepared.report.path
        named = "; ".join(f"row {one.row} of {origin}: {one.reason}" for one in missing)
        if len(missing) > budget:
            raise RecordingError(
                f"{named}. {len(missing)} rows were lost in capture, Record(nonfinite_budget={budget}) allows no more. "
                "Remove these rows, capture in another dtype, or raise nonfinite_budget"
            )
        if found and found[-1].missing:
            self._say(f"lost in capture: {named}. Left out ({len(missing)} so far)")

    def _result(self, found: Sequence[ShardEntry], exit_code: int) -> RecordResult:
        missing = tuple(one for entry in found for one in entry.missing)
        documents, tokens = sum(e.documents for e in found), sum(e.tokens for e in found)
        return RecordResult(exit_code, self.folder, documents, tokens, missing)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _on_host(features: Features) -> Features:
    return Features(features.aux_TC.cpu(), features.last_TH.cpu())


def _empty(number: int) -> ShardEntry:
    return ShardEntry(shard_name(number), 0, "", 0, 0, 0, 0)
