"""Export of an app at a moment to a folder of Parquet files that can be read without slackwater.

The SSTs of the moment are merged, as by a compaction, so that the files have only the newest row of each key. The app
is not changed. The folder gets its final name when all files are complete; the document `export.json` is the last file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from ...common.whole_file import atomic_folder, check_absent
from ...errors import Corruption, Refused
from ...snapshot.change.first_versions import in_flight_reader
from ...snapshot.cut.graph import Cut, readers_by_channel, violations
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.resolve import report_if_collected
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.query.columns import describe_columns, visible_schema
from ...snapshot.take.capture import count_by_partition, merge_chunks
from ...store.compaction.merge import iter_visible_rows
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, codec, limits
from ...store.versions.commit import without_open_snapshots, without_version_fields
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import find_owner, without_ssts

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FolderWritten:
    """Result of an export to a folder."""

    path: Path
    export: Export

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.export.files)


def export_folder(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    ref: str,
    path: Path,
    reader: Callable[[], KafkaTopics],
    *,
    by: str,
    now_ms: int,
    on_progress: OnProgress = lambda _done, _all: None,
) -> FolderWritten:
    """Write an app at a moment to a new folder. The folder appears complete or not at all.

    `reader` returns a reader of in-flight records in Kafka; it is called only if no snapshot has copied them.
    `on_progress` gets the number of state partitions written and their total number. A call that is killed leaves a
    folder beside `path` with a name that begins with a dot; the next call removes that folder.

    Raises `NotFound` (the moment was garbage collected meanwhile), `Refused` (the folder exists or cannot be written,
    or records in flight no longer exist), `Usage` (raised by `reader`), `Corruption` (an object differs from what its
    manifest states) and `Unavailable`.
    """
    if wrong := violations(cut.stages):
        raise Refused(f"{ref} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    check_absent(path, "folder")
    if path.absolute().is_relative_to(store.url):
        raise Refused(f"{path} lies inside the store root {store.url}", hint="choose a folder outside the store")
    info = apps.find_app(store, cut.app)
    with atomic_folder(path, "folder") as folder, report_if_collected(store, cut):
        tables = cut.tables
        done = _Progress(sum(version.table.partitions for version in tables.values() if version.table), on_progress)
        document = Export(
            app=cut.app,
            ref=ref,
            time_ms=cut.time_ms,
            exported_ms=now_ms,
            by=by,
            stages={stage: export_manifest(version, cut.clock_ms(stage)) for stage, version in cut.stages.items()},
            tables={
                name: _export_table(store, cache, cut, name, version, folder, done) for name, version in tables.items()
            },
            in_flight=tuple(_export_channels(store, cut, folder, reader)),
            starts=dict(info.starts) if info is not None else {},
        )
        (folder / DOCUMENT).write_bytes(codec.encode(document))
    return FolderWritten(path, document)


@dataclass(slots=True)
class _Progress:
    all: int
    on_progress: OnProgress
    done: int = field(default=0)

    def advance(self) -> None:
        self.done += 1
        self.on_progress(self.done, self.all)


def _export_table(
    store: ObjectStore, cache: SstCache, cut: Cut, name: str, version: Manifest, folder: Path, progress: _Progress
) -> ExportedTable:
    assert version.table is not None  # noqa: S101  `Cut.tables` are versions with one
    table, schema, files = version.table, visible_schema(version.table), list[File]()
    for partition in range(table.partitions):
        rows = iter_visible_rows(store, cache, version.ssts, table, partition, cut.clock_ms(name), schema.names)
        files += (
            _write_file(
                folder, _path("tables", name, number), pa.table(part.select(schema.names).columns, schema=schema)
            )
            for number, part in enumerate(merge_chunks(rows), len(files))
        )
        progress.advance()
    # A table without rows gets one file, which has its columns.
    files = files or [_write_file(folder, _path("tables", name, 0), schema.empty_table())]
    shown = describe_columns(version)
    return ExportedTable(
        stage=find_owner(name, cut.stages),
        key=tuple(column.name for column in shown if column.key),
        columns={column.name: column.type for column in shown},
        rows=sum(file.rows for file in files),
        files=tuple(files),
    )


def _export_channels(
    store: ObjectStore, cut: Cut, folder: Path, reader: Callable[[], KafkaTopics]
) -> Iterator[ExportedChannel]:
    records = in_flight_reader(store, cut, find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None)
    for of_channel in readers_by_channel(cut):
        number = 0
        for channel, following in zip(of_channel, (*of_channel[1:], None), strict=True):
            state, captured, counts_before_forget = records(channel, following)
            if not state.attempts:
                continue
            counts, files = [0] * len(state.ends), []
            for rows in merge_chunks(reader().read(state) if captured is None else captured):
                files.append(_write_file(folder, _path("in-flight", channel.name, number), rows))
                number += 1
                counts = [a + b for a, b in zip(counts, count_by_partition(rows, len(counts)).tolist(), strict=True)]
            if state.counts and not counts_before_forget and tuple(counts) != state.counts:
                raise Corruption(
                    f"channel {channel.name!r} holds {counts} records in flight by partition; {channel.sender} and "
                    f"{channel.receiver or 'its readers'} recorded {list(state.counts)}",
                    object_key=state.topic,
                )
            if files:
                yield ExportedChannel(
                    channel=channel.name,
                    sender=channel.sender,
                    receiver=channel.receiver,
                    after=state.after,
                    up_to=state.up_to,
                    counts=tuple(counts),
                    schema=state.schema,
                    files=tuple(files),
                )


def _path(kind: str, name: str, number: int) -> str:
    return f"{kind}/{name}/part-{number:05}.parquet"


def _write_file(folder: Path, path: str, rows: pa.Table) -> File:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target, compression="zstd", write_page_checksum=True)
    with target.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return File(path, rows.num_rows, target.stat().st_size, digest)


DOCUMENT = "export.json"


class File(Struct, frozen=True):
    """One Parquet file of an exported folder."""

    path: str
    rows: limits.Bytes
    bytes: limits.Bytes
    sha256: str


class ExportedTable(Struct, frozen=True):
    """Exported table: a stage's own table or a side table."""

    stage: limits.Name
    key: tuple[limits.ColumnName, ...]
    columns: dict[limits.ColumnName, limits.TypeName]
    rows: limits.Count
    files: tuple[File, ...]
    """Files of the table, at least one. A table without rows has one file without rows."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class ExportedChannel(Struct, frozen=True):
    """In-flight records from one stage to another, as exported.

    A record that several stages have not consumed is listed once, for the stage that has read furthest. The other
    stages have not consumed the record either.
    """

    channel: limits.Name
    sender: limits.Name
    receiver: limits.NameOrNone
    """Stage that has not consumed the records; empty if no stage has read the channel yet."""
    after: limits.Seq
    """Version of the sender before the records. Versions `after` + 1 to `up_to` sent the records."""
    up_to: limits.Seq
    counts: limits.Counts
    """Number of records, by Kafka partition."""
    schema: limits.Text
    """The channel's columns as a Spark DDL string."""
    files: tuple[File, ...]


class Export(Struct, frozen=True):
    """Document `export.json` of an exported folder: the app, the moment, and the files."""

    app: limits.Name
    ref: limits.ShortText
    """Ref of the moment, as the user typed it."""
    time_ms: limits.TimeMs
    """Commit time of the newest version, milliseconds since 1970 UTC."""
    exported_ms: limits.TimeMs
    by: limits.ShortText
    """User who exported, as `user@host`."""
    stages: dict[limits.Name, Manifest]
    tables: dict[limits.Name, ExportedTable]
    in_flight: tuple[ExportedChannel, ...] = ()
    starts: dict[limits.Topic, limits.Offsets] = {}
    """First offsets by user's topic that `init` has set for stages without versions."""

    @property
    def files(self) -> Iterator[File]:
        for table in self.tables.values():
            yield from table.files
        for channel in self.in_flight:
            yield from channel.files


def export_manifest(manifest: Manifest, clock_ms: int) -> Manifest:
    """Return a stage's version for `export.json`. Rows of its tables that are expired at `clock_ms` are left out."""
    # Snapshots in progress and request totals belong to the source app.
    exported = replace(
        without_open_snapshots(without_version_fields(manifest)), totals=None, clock_ms=max(manifest.clock_ms, clock_ms)
    )
    return without_ssts(exported)
