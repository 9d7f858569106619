"""Conversion of a replay to a bundle, and of a bundle to a replay that needs neither Kafka nor the app's store."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....errors import Refused
from ....pipeline.kafka.memory import MemoryKafka
from ....pipeline.run.program import load_app
from ....snapshot.diff.stored_rows import distinct_keys
from ....state.step import EVERY_HASH, StepResult
from ....store.objects.local import LocalStore
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst import writer as sst
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import HASH, OP, PUT, SEQ, add_missing_columns, sst_schema
from ....store.versions.entries.ssts import Sst, Ssts
from ....store.versions.manifest import EventTime, Manifest, SideTable, Table
from .bundle import EXISTED, FILE_NAME, Bundle, BundledInput, BundledOutput, Index, before_schema, committed_schema
from .compare import Comparison, SentRows
from .program import open_program
from .stage_replay import StageReplay, filter_by_keys

_CACHE_BYTES = 1 << 30
_SENT_ROWS_LOST = "the bundle lacks the rows sent: Kafka no longer had them"


@dataclass(frozen=True)
class BundledReplay(StageReplay):
    """Replay of the batch in a bundle."""

    known_keys: pa.Table | None = None
    """Keys whose previous rows are in the bundle; None for a stage without a table."""

    def merge(self, rows: pa.Table, hashes: tuple[int, int] = EVERY_HASH) -> StepResult:
        """Merge rows into the table. Raises `Refused` for keys whose previous rows are not in the bundle."""
        assert self.known_keys is not None  # noqa: S101  a stage without a table merges nothing
        known_hashes = hash_keys(self.known_keys, self.known_keys.column_names)
        new_hashes = np.setdiff1d(rows["_hash"].to_numpy(), known_hashes)
        if len(new_hashes):
            raise Refused(
                f"the program now writes {len(new_hashes)} keys that it did not write when the bundle was written, so "
                "the bundle lacks their previous rows",
                hint=f"write it again with this program: slackwater replay {self.after.app}/{self.after.stage}"
                f"@v{self.after.version} --code FILE --bundle FILE.zip",
            )
        return super().merge(rows, hashes)


def capture_bundle(
    replay: StageReplay, comparison: Comparison, sent: Mapping[str, SentRows], only: pa.Table | None = None
) -> Bundle:
    """Return the bundle of a replayed batch.

    `comparison` is the result of `compare`, called with `sent` and `only`. With `only`, a table of keys, the bundle has
    only these keys, without records that are known to have no effect on them. Raises `Refused` if the program has no
    file, and the errors of look-ups in the state.
    """
    file, table, after = replay.program.app.file, replay.before.table, replay.after
    if file is None:
        raise Refused("a bundle needs the program's file, but this program was not loaded from a file")
    inputs, channels = replay.stage.inputs, () if only is not None else replay.stage.repartitions
    previous_times, times = replay.before.event_time or EventTime(), after.event_time or EventTime()
    index = Index(
        app=after.app,
        stage=after.stage,
        version=after.version,
        time_ms=after.time_ms,
        program=file.name if re.match(FILE_NAME, file.name) else "program.py",
        inputs=tuple(BundledInput(name, replay.records[name].topic, replay.records[name].upstream) for name in inputs),
        outputs=tuple(
            BundledOutput(channel.name, channel.key, sent[channel.name].rows is not None) for channel in channels
        ),
        table=table,
        parts={name: look_ups.table for name, look_ups in replay.look_ups.items()},
        seq=after.row_seq,
        before_clock_ms=replay.before.clock_ms,
        clock_ms=after.clock_ms,
        before_watermark_ms=replay.before.watermark_ms,
        bound_ms=times.bound_ms,
        before_due_ms=previous_times.due_ms,
        next_due_ms=previous_times.next_due_ms,
        due_ms=times.due_ms,
        wall_ms=times.wall_ms,
        some_keys=only is not None,
    )
    records, rows_before, committed = replay.records, None, None
    if only is not None and replay.knows_records:
        records = replay.take_records(np.unique(replay.record_of(filter_by_keys(replay.rows(), only))))
    if table is not None and comparison.keys is not None and comparison.committed is not None:
        rows_before = _previous_rows(replay, table, comparison.keys.keys, only)
        schema = committed_schema(table)
        committed = comparison.committed.select(schema.names).cast(schema)
    parts = {}
    for name, look_ups in replay.look_ups.items():
        assert rows_before is not None  # noqa: S101  a stage with parts has a table
        stored = look_ups.get_parts(rows_before.select([column.name for column in replay.table.key]))[1]
        schema = committed_schema(look_ups.table)
        written = filter_by_keys(replay.written_parts(name), only)
        parts[name] = (stored, written.select(schema.names).cast(schema))
    known_rows = {channel.name: rows for channel in channels if (rows := sent[channel.name].rows) is not None}
    return Bundle(index, file.read_bytes(), records, rows_before, committed, known_rows, parts)


@contextmanager
def open_bundle(
    bundle: Bundle, code: Path | None = None
) -> Iterator[tuple[BundledReplay, dict[str, SentRows], pa.Table | None]]:
    """Open the replay of a bundle. Yields the replay, the sent rows, and the keys to compare (None for all).

    `code` is the program to replay; None for the program in the bundle. Starts Spark unless a session runs already.
    Raises `Refused` if the program cannot replay the bundle, and the errors of `load_app`.
    """
    index = bundle.index
    with tempfile.TemporaryDirectory(prefix="slackwater-bundle-", ignore_cleanup_errors=True) as folder:
        file = code or Path(folder) / index.program
        if code is None:
            file.write_bytes(bundle.program)
        app = load_app(str(file), name=index.app)
        store, cache = LocalStore(Path(folder) / "store"), SstCache(Path(folder) / "cache", _CACHE_BYTES)
        with open_program(app, store, cache, MemoryKafka("memory://bundle")) as program:
            before, after, known_keys = index.before, index.after, None
            if index.table is not None and bundle.before is not None and bundle.committed is not None:
                known_keys = bundle.before.select([column.name for column in index.table.key])
                before = replace(
                    before, ssts=_write_sst(store, index, index.table, _as_sst_rows(bundle.before, index.table))
                )
                after = replace(after, ssts=before.ssts.plus(_write_sst(store, index, index.table, bundle.committed)))
                before, after = _with_parts(store, bundle, before, after)
            replay = BundledReplay(program, before, after, loaded=dict(bundle.records), known_keys=known_keys)
            _check_inputs(replay, bundle)
            sent = {
                output.name: SentRows(bundle.sent.get(output.name), _SENT_ROWS_LOST) for output in replay.stage.writes
            }
            yield replay, sent, known_keys if index.some_keys else None


def _previous_rows(replay: StageReplay, table: Table, written: pa.Table, only: pa.Table | None) -> pa.Table:
    keys = written
    if replay.due is not None and replay.due.pending:
        due = filter_by_keys(replay.stored.get_due_rows(replay.due.span, EVERY_HASH).keys, only)
        keys = pa.concat_tables([keys, due.drop_columns([HASH]).cast(keys.schema)])
    keys = distinct_keys(keys.append_column(HASH, pa.array(hash_keys(keys, keys.column_names)))).drop_columns([HASH])
    values, present, _ = replay.stored.get_rows(hash_keys(keys, keys.column_names), keys)
    return pa.Table.from_arrays([*keys.columns, *values.columns, pa.array(present)], schema=before_schema(table))


def _with_parts(store: ObjectStore, bundle: Bundle, before: Manifest, after: Manifest) -> tuple[Manifest, Manifest]:
    versions: tuple[dict[str, SideTable], dict[str, SideTable]] = {}, {}
    for name, rows in bundle.parts.items():
        ssts, table = Ssts(), bundle.index.parts[name]
        for sides, part_rows in zip(versions, (_with_internal_columns(rows[0], table), rows[1]), strict=True):
            ssts = ssts.plus(_write_sst(store, bundle.index, table, part_rows))
            sides[name] = SideTable(table, ssts)
    return replace(before, side_tables=versions[0]), replace(after, side_tables=versions[1])


def _as_sst_rows(rows_before: pa.Table, table: Table) -> pa.Table:
    return _with_internal_columns(rows_before.filter(rows_before[EXISTED]).drop_columns([EXISTED]), table)


def _with_internal_columns(rows: pa.Table, table: Table) -> pa.Table:
    internal = {
        HASH: pa.array(hash_keys(rows, [column.name for column in table.key])),
        SEQ: pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
        OP: pa.repeat(pa.scalar(PUT, pa.int8()), rows.num_rows),
    }
    for name, column in internal.items():
        rows = rows.append_column(name, column)
    return add_missing_columns(rows, sst_schema(table))


def _write_sst(store: ObjectStore, index: Index, table: Table, rows: pa.Table) -> tuple[Sst, ...]:
    if not rows.num_rows:
        return ()
    whole = replace(table, partitions=1)
    return (sst.write_sst(store, None, app=index.app, stage=index.stage, table=whole, partition=0, rows=rows),)


def _check_inputs(replay: BundledReplay, bundle: Bundle) -> None:
    for name in (bundled_input.name for bundled_input in bundle.index.inputs):
        if name not in replay.schemas:
            raise Refused(
                f"the bundle has records of {name!r}, which the program's stage {replay.after.stage!r} does not read"
            )
    for name, schema in replay.schemas.items():
        if name not in bundle.records:
            raise Refused(
                f"the bundle has no records of {name!r}, which the program's stage {replay.after.stage!r} reads"
            )
        bundled = bundle.records[name].rows.schema
        if bundled.names != schema.names or bundled.types != schema.types:
            raise Refused(
                f"the program's {name!r} has columns ({schema.to_string()}), but the bundle's has "
                f"({bundled.to_string()})",
                hint="replay it with a program that reads the same columns",
            )
