"""`slackwater import`: a new app from an exported folder, by the steps of a clone that has everything of its own.

A note says that the app is being made, then its SSTs are put, its topics get what was in flight, each stage gets its
first version, and the app's identity comes last: before it, the app is there for nobody. Killed anywhere, the same call
goes on from the note. The folder is only read, and every byte of it is looked at before anything is written.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Self

import pyarrow as pa
import xxhash
from msgspec import structs
from ulid import ULID

from ...errors import Corruption, NotFound, Refused
from ...moments.cut.graph import Channel, channels, violations
from ...moments.cut.in_flight import InFlight
from ...moments.cut.refs import check_new_name
from ...moments.take.audit_log import record_once
from ...store.objects.protocol import ObjectStore, exists
from ...store.sst.writer import SstWriter
from ...store.versions import apps, codec, keys
from ...store.versions.apps import Cloning
from ...store.versions.limits import MAX_OBJECT_BYTES
from ...store.versions.manifest import AppInfo, Manifest, Origin, Sst, Table
from ...store.versions.side_tables import columns_of, table_name
from ..clone.first_versions import Channels, channel_topic, finish_clone, offset_syncs, users_inputs
from ..clone.plan import (
    ClonePlan,
    check_channels_free,
    check_nothing_there,
    check_published,
    check_sinks,
    topics_read,
)
from .document import DOCUMENT, Export, TablePart
from .parts import changed, check_folder, read_part, read_records

OnProgress = Callable[[int, int], None]
_LEVEL = 1
"""Of its SSTs: side by side they are one run, which nobody need merge."""
_WORKERS = min(os.cpu_count() or 1, 4)
"""Each has an SST in memory."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An exported folder, as its document says it is."""

    path: Path
    export: Export
    checksum: str
    """Of the document, which has those of all files: it names the folder's content."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises `NotFound` where there is no such folder, `Refused` where it is none that was exported whole."""
        document = path / DOCUMENT
        if not path.is_dir():
            raise NotFound("folder", str(path), found="there is none", hint="slackwater export REF DIR writes one")
        try:
            with document.open("rb") as file:
                data = file.read(MAX_OBJECT_BYTES + 1)
        except OSError as error:
            raise changed(path, f"{DOCUMENT} cannot be read: {error.strerror or error}") from error
        if len(data) > MAX_OBJECT_BYTES:
            raise changed(path, f"{DOCUMENT} is larger than any, which has at most {MAX_OBJECT_BYTES >> 20} MiB")
        try:
            export = codec.decode(data, Export, key=DOCUMENT)
        except Corruption as error:
            raise changed(path, error.message) from error
        return cls(path, export, xxhash.xxh3_128_hexdigest(data))

    def records(
        self, reader: Channel, _following: Channel | None
    ) -> tuple[InFlight, Iterator[pa.Table], tuple[int, ...]]:
        """As `first_versions.Records`."""
        partitions = len(self.export.stages[reader.sender].outputs[reader.name].ends)
        state, files = self.export.records(reader, partitions)
        return state, read_records(self.path, files, state.counts), ()


def import_app(
    target: ObjectStore,
    path: Path,
    name: str,
    *,
    kafka: Channels,
    topics: Mapping[str, str] | None = None,
    sinks: Mapping[str, str] | None = None,
    by: str,
    now_ms: int,
    dry_run: bool = False,
    on_progress: OnProgress = lambda _done, _all: None,
) -> ClonePlan:
    """Make app `name` in the store `target` of an exported folder. A call that was interrupted is finished by the same.

    Arguments and errors are those of `Client.import_app`. A sink's topic may be the one of before; sinks that are not
    named are not written at all. With `dry_run`, everything is checked and nothing changed. `on_progress` is told how
    many SSTs are written, and of how many.
    """
    folder = Folder.open(path)
    info = _identity(folder, name, topics or {}, sinks or {}, now_ms)
    plan = _plan(target, folder, info, kafka)
    if not plan.done:
        check_folder(path, folder.export)
    if dry_run:
        return plan
    if not plan.done:
        note = plan.note or _begin(target, plan)
        plan = replace(plan, info=note.info)
        tables = ImportedTables(target, folder, name, on_progress)
        finish_clone(target, note.info, plan.source, folder.records, tables, kafka, by=by, is_new=plan.note is None)
    made = {stage: (0, version) for stage, version in plan.source.versions.items()}
    detail = f"{folder.export.ref}, exported by {folder.export.by}"
    record_once(target, name, "import", detail, by, made, since_ms=plan.info.created_ms, same=lambda _had: True)
    return plan


def _identity(folder: Folder, name: str, topics: Mapping[str, str], sinks: Mapping[str, str], now_ms: int) -> AppInfo:
    cut = folder.export.cut
    read = topics_read(cut, topics)
    check_sinks(cut, sinks, are_moved=True)
    origin = Origin(
        root="",
        app=cut.app,
        snapshot="",
        cut=cut.versions,
        topics={declared: topic for declared, topic in sorted(read.items()) if declared != topic},
        sinks=dict(sorted(sinks.items())),
        export=folder.checksum,
    )
    return AppInfo(name, now_ms, origin, folder.export.starts)


def _plan(target: ObjectStore, folder: Folder, info: AppInfo, kafka: Channels) -> ClonePlan:
    """What the import is made of, with everything checked that can be before the files are looked at."""
    name, cut = check_new_name("app", info.name), folder.export.cut
    apps.check_root(target)
    if wrong := violations(cut.stages):
        raise changed(folder.path, f"{folder.export.ref} is not a consistent cut: {'; '.join(wrong)}")
    begun = _begun(target, info)
    done, note = isinstance(begun, AppInfo), begun if isinstance(begun, Cloning) else None
    assert info.origin is not None  # noqa: S101  `_identity` gives one
    read = {declared: info.origin.topics.get(declared, at.topic) for declared, at in users_inputs(cut)}
    if not done:
        for declared, at in users_inputs(cut):
            _check_no_mirror(kafka, read[declared], at.topic, cut.app)
            # Elsewhere it may be a mirror: it has an id of its own.
            kafka.check_topic(read[declared], at.offsets, "")
    if begun is None:
        check_channels_free(cut, name, kafka)
        check_published(cut, read, info.origin.sinks, kafka)
    in_flight = tuple(state for edge in channels(cut) if (state := folder.records(edge, None)[0]).attempts)
    sizes = {each: table.bytes for each, table in folder.export.tables.items()}
    found = begun.info if isinstance(begun, Cloning) else begun
    return ClonePlan(cut, found or info, target.url, read, in_flight, sizes, begun is not None, done, note)


def _check_no_mirror(kafka: Channels, topic: str, read: str, app: str) -> None:
    """Raise `Refused` where a topic is one that MirrorMaker 2 made of the one that was read."""
    alias = topic.removesuffix(f".{read}")
    if alias != topic and kafka.ends(offset_syncs(alias)) is not None:
        raise Refused(
            f"{topic} is what MirrorMaker made of {read} of the cluster {alias}: its offsets are others, and nothing "
            "here says which records they are of",
            hint="read the topic itself, where Kafka has it; or carry the app over as a replica, which knows by its "
            f"records where it stood: slackwater replicate {app} --to ROOT --kafka THERE, then slackwater "
            f"recover {app} --from ROOT --mirror {alias} --kafka HERE",
        )


def _begun(target: ObjectStore, planned: AppInfo) -> AppInfo | Cloning | None:
    """This very app, if an earlier call began it: its note, or its identity when it is whole; None if there is none.

    Raises `Refused` where something else has the name.
    """
    name = planned.name
    found, note = apps.find_begun(target, name)
    if found is None:
        check_nothing_there(target, name)
        return None
    if found.origin == planned.origin:
        return note or found
    if note is not None:
        raise Refused(
            f"app {name!r} was begun and is not finished: of another folder, or on other terms",
            hint="finish it by the call that it was begun with, or choose another name; "
            f"`slackwater app rm {name}` gives it up",
        )
    raise Refused(f"app {name!r} exists already under {target.url}", hint="choose another name")


def _begin(target: ObjectStore, plan: ClonePlan) -> Cloning:
    """Write the app's note: from here on the name is its own."""
    topics = sorted({channel_topic(plan.info.name, edge.name) for edge in channels(plan.source)})
    wanted = Cloning(plan.info, "", "", deep=True, topics=tuple(topics))
    apps.begin_clone(target, wanted)
    return wanted


@dataclass(slots=True)
class ImportedTables:
    """Where the SSTs of the app's first versions come from: each part of a folder becomes one.

    An SST's name is made of the part's checksum. So whoever goes on with an import that was broken off finds what is
    there already, and writes no second one; the same rows give the same bytes.
    """

    target: ObjectStore
    folder: Folder
    app: str
    on_progress: OnProgress
    _lock: Lock = field(default_factory=Lock)

    def made(self, stages: Iterable[str], /) -> dict[str, Manifest]:
        """As `first_versions.FirstTables`. Raises `Refused` where the folder is not as it was written."""
        export, wanted = self.folder.export, tuple(stages)
        work = [
            (stage, name, part, table)
            for stage in wanted
            for name, table in columns_of({stage: export.stages[stage]}).items()
            for part in export.tables[name].parts
            if part.file.rows
        ]
        counter = iter(range(1, len(work) + 1))

        def one(stage: str, name: str, part: TablePart, table: Table) -> Sst:
            sst = self._sst(stage, name, part, table)
            with self._lock:
                self.on_progress(next(counter), len(work))
            return sst

        with ThreadPoolExecutor(_WORKERS, "import") as pool:
            ssts = list(pool.map(lambda each: one(*each), work))
        found: dict[str, list[Sst]] = {}
        for (_, name, _, _), sst in zip(work, ssts, strict=True):
            found.setdefault(name, []).append(sst)
        for name, some in found.items():
            if any(before.hash_max >= after.hash_min for before, after in pairwise(some)):
                raise changed(self.folder.path, f"the files of {name} are not in the order of their rows")
        return {stage: self._with_ssts(export.stages[stage], found) for stage in wanted}

    def _with_ssts(self, manifest: Manifest, found: Mapping[str, list[Sst]]) -> Manifest:
        others = {
            name: structs.replace(each, ssts=tuple(found.get(table_name(manifest.stage, name), ())))
            for name, each in manifest.side_tables.items()
        }
        return structs.replace(manifest, ssts=tuple(found.get(manifest.stage, ())), side_tables=others)

    def _sst(self, stage: str, name: str, part: TablePart, table: Table) -> Sst:
        writer = SstWriter(table)
        writer.append(read_part(self.folder.path, name, part, table))
        sst, data = writer.finish(app=self.app, stage=stage, partition=part.partition, level=_LEVEL)
        sst = structs.replace(sst, object=keys.sst(self.app, stage, self._ulid(part)))
        if not (exists(self.target, sst.object) and self.target.get(sst.object) == data):
            self.target.put(sst.object, data)
        return sst

    def _ulid(self, part: TablePart) -> str:
        """The same each time, and another one for each part: of when it was exported, and of its bytes."""
        seed = f"{part.file.path} {part.file.sha256} {part.internal.sha256}".encode()
        time_ms = self.folder.export.exported_ms
        return str(ULID(time_ms.to_bytes(6, "big") + xxhash.xxh3_128_digest(seed)[:10]))
