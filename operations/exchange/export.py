"""A moment of an app as a folder that opens without slackwater.

What SSTs of the moment hold of a key is merged into its newest row, as a compaction would; nothing of the app changes.
The folder gets its name when all of it is there, and its document is written last: one that is not whole is none.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ...common.whole_file import check_new, whole_folder
from ...errors import Corruption, Refused
from ...snapshot.change.first_versions import kept_or_in_kafka
from ...snapshot.cut.graph import Cut, readers, violations
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.resolve import telling_if_collected
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.query.columns import columns, visible_schema
from ...snapshot.take.capture import count_by_partition, gathered
from ...store.compaction.merge import merged_rows
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, codec
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import owner
from .document import DOCUMENT, Export, ExportedChannel, ExportedTable, File, of_stage

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FolderWritten:
    """A folder that was written."""

    path: Path
    export: Export
    """What its document says."""

    @property
    def bytes(self) -> int:
        """Of all files but the document."""
        return sum(each.bytes for each in self.export.files)


def export_folder(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    ref: str,
    path: Path,
    reader: Callable[[], Topics],
    *,
    by: str,
    now_ms: int,
    on_progress: OnProgress = lambda _done, _all: None,
) -> FolderWritten:
    """Write an app at a moment to a new folder, which appears whole or not at all.

    `reader` is asked for what reads records in flight from Kafka where there are some that no snapshot keeps;
    `on_progress` is told how many state partitions are written, and of how many. A call that was killed leaves a folder
    beside `path`, under a name that begins with a dot, which the next call removes.

    Raises `NotFound` (the moment was collected meanwhile), `Refused` (there is such a folder already, it cannot be
    written, or records in flight are gone), `Usage` as `reader`, `Corruption` (an object is not what a manifest
    promises) and `Unavailable`.
    """
    if wrong := violations(cut.stages):
        raise Refused(f"{ref} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    check_new(path, "folder")
    if path.absolute().is_relative_to(store.url):
        raise Refused(f"{path} lies inside the store root {store.url}", hint="choose a folder beside it")
    info = apps.find_app(store, cut.app)
    with whole_folder(path, "folder") as folder, telling_if_collected(store, cut):
        tables = cut.tables
        done = _Progress(sum(each.table.partitions for each in tables.values() if each.table), on_progress)
        made = Export(
            app=cut.app,
            ref=ref,
            time_ms=cut.time_ms,
            exported_ms=now_ms,
            by=by,
            stages={stage: of_stage(each, cut.clock_ms(stage)) for stage, each in cut.stages.items()},
            tables={name: _table(store, cache, cut, name, each, folder, done) for name, each in tables.items()},
            in_flight=tuple(_channels(store, cut, folder, reader)),
            starts=dict(info.starts) if info is not None else {},
        )
        (folder / DOCUMENT).write_bytes(codec.encode(made))
    return FolderWritten(path, made)


@dataclass(slots=True)
class _Progress:
    all: int
    on_progress: OnProgress
    done: int = field(default=0)

    def one(self) -> None:
        self.done += 1
        self.on_progress(self.done, self.all)


def _table(
    store: ObjectStore, cache: SstCache, cut: Cut, name: str, at: Manifest, folder: Path, progress: _Progress
) -> ExportedTable:
    assert at.table is not None  # noqa: S101  `Cut.tables` are versions with one
    table, schema, files = at.table, visible_schema(at.table), list[File]()
    for partition in range(table.partitions):
        rows = merged_rows(store, cache, at.ssts, table, partition, cut.clock_ms(name), schema.names)
        files += (
            _written(folder, _path("tables", name, number), pa.table(some.select(schema.names).columns, schema=schema))
            for number, some in enumerate(gathered(rows), len(files))
        )
        progress.one()
    # Of a table that has none yet, its columns are to be seen.
    files = files or [_written(folder, _path("tables", name, 0), schema.empty_table())]
    shown = columns(at)
    return ExportedTable(
        stage=owner(name, cut.stages),
        key=tuple(each.name for each in shown if each.key),
        columns={each.name: each.type for each in shown},
        rows=sum(each.rows for each in files),
        files=tuple(files),
    )


def _channels(store: ObjectStore, cut: Cut, folder: Path, reader: Callable[[], Topics]) -> Iterator[ExportedChannel]:
    records = kept_or_in_kafka(store, cut, find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None)
    for of_channel in readers(cut):
        number = 0
        for one, following in zip(of_channel, (*of_channel[1:], None), strict=True):
            state, kept, were = records(one, following)
            if not state.attempts:
                continue
            counts, files = [0] * len(state.ends), []
            for rows in gathered(reader().read(state) if kept is None else kept):
                files.append(_written(folder, _path("in-flight", one.name, number), rows))
                number += 1
                counts = [a + b for a, b in zip(counts, count_by_partition(rows, len(counts)).tolist(), strict=True)]
            if state.counts and not were and tuple(counts) != state.counts:
                raise Corruption(
                    f"channel {one.name!r} holds {counts} records in flight by partition; {one.sender} and "
                    f"{one.receiver or 'its readers'} say {list(state.counts)}",
                    object_key=state.topic,
                )
            if files:
                yield ExportedChannel(
                    channel=one.name,
                    sender=one.sender,
                    receiver=one.receiver,
                    after=state.after,
                    up_to=state.up_to,
                    counts=tuple(counts),
                    schema=state.schema,
                    files=tuple(files),
                )


def _path(kind: str, name: str, number: int) -> str:
    return f"{kind}/{name}/part-{number:05}.parquet"


def _written(folder: Path, path: str, rows: pa.Table) -> File:
    """Write rows to a file of the folder. Raises `OSError` where there is no room."""
    where = folder / path
    where.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, where, compression="zstd", write_page_checksum=True)
    with where.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return File(path, rows.num_rows, where.stat().st_size, digest)
