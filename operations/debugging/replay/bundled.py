"""From a replay to a bundle, and from a bundle to a replay that needs neither Kafka nor the app's store."""

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
from ....snapshot.diff.stored_rows import distinct
from ....state.step import EVERY_HASH
from ....store.objects.local import LocalStore
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst import writer as sst
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import HASH, OP, PUT, SEQ, completed, sst_schema
from ....store.versions.manifest import EventTime, Sst, Table
from .bundle import FILE_NAME, THERE, Bundle, BundledInput, BundledOutput, Index, before_schema, committed_schema
from .compare import Comparison, SentRows
from .program import open_program
from .stage_replay import StageReplay, of_keys

_CACHE_BYTES = 1 << 30
_UNKNOWN = "the bundle does not have what was sent: Kafka had it no more"


@dataclass(frozen=True)
class BundledReplay(StageReplay):
    """The replay of a bundle's batch."""

    known: pa.Table | None = None
    """The keys of whose rows before it knows; None for a stage without a table."""

    def merged(self, rows: pa.Table) -> tuple[pa.Table, tuple[pa.Table, ...]]:
        """As any replay; raises `Refused` for keys whose rows before are not in the bundle."""
        assert self.known is not None  # noqa: S101  a stage without a table merges nothing
        known = hash_keys(self.known, self.known.column_names)
        strange = np.setdiff1d(rows["_hash"].to_numpy(), known)
        if len(strange):
            raise Refused(
                f"the program now writes {len(strange)} keys that it did not write when the bundle was made, so their "
                "rows before are not in it",
                hint=f"write it again with this program: slackwater replay {self.after.app}/{self.after.stage}"
                f"@v{self.after.version} --code FILE --bundle FILE.zip",
            )
        return super().merged(rows)


def capture(
    replay: StageReplay, found: Comparison, sent: Mapping[str, SentRows], only: pa.Table | None = None
) -> Bundle:
    """The bundle of a batch that was replayed: `found` is what `compare` gave, with the same `sent` and `only`.

    `only` are key columns, for a case of these keys alone: then records that do not reach them are left out, where it
    is known which these are. Raises `Refused` where the program is no file, and as looking up state does.
    """
    file, table, after = replay.program.app.file, replay.before.table, replay.after
    if file is None:
        raise Refused("a bundle has the program's file, and this one was declared in no file")
    inputs, channels = replay.stage.inputs, () if only is not None else replay.stage.repartitions
    known, times = replay.before.event_time or EventTime(), after.event_time or EventTime()
    index = Index(
        app=after.app,
        stage=after.stage,
        version=after.version,
        time_ms=after.time_ms,
        program=file.name if re.match(FILE_NAME, file.name) else "program.py",
        inputs=tuple(BundledInput(name, replay.records[name].topic, replay.records[name].upstream) for name in inputs),
        outputs=tuple(BundledOutput(one.name, one.key, sent[one.name].rows is not None) for one in channels),
        table=table,
        seq=after.row_seq,
        before_clock_ms=replay.before.clock_ms,
        clock_ms=after.clock_ms,
        before_watermark_ms=replay.before.watermark_ms,
        bound_ms=times.bound_ms,
        before_due_ms=known.due_ms,
        next_due_ms=known.next_due_ms,
        due_ms=times.due_ms,
        wall_ms=times.wall_ms,
        some_keys=only is not None,
    )
    records, before, committed = replay.records, None, None
    if only is not None and replay.knows_records:
        records = replay.taken(np.unique(replay.record_of(of_keys(replay.rows(), only))))
    if table is not None and found.keys is not None and found.committed is not None:
        before = _before(replay, table, found.keys.keys, only)
        schema = committed_schema(table)
        committed = found.committed.select(schema.names).cast(schema)
    known_rows = {one.name: rows for one in channels if (rows := sent[one.name].rows) is not None}
    return Bundle(index, file.read_bytes(), records, before, committed, known_rows)


@contextmanager
def open_bundle(
    bundle: Bundle, code: Path | None = None
) -> Iterator[tuple[BundledReplay, dict[str, SentRows], pa.Table | None]]:
    """The replay of a bundle, what its version sent, and the keys to which `compare` is to be restricted, if any.

    `code` is the program to replay it with; None for the one in the bundle. Starts Spark, unless one runs here already.
    Raises `Refused` where the program is not one that can replay it, and as `load_app`.
    """
    index = bundle.index
    with tempfile.TemporaryDirectory(prefix="slackwater-bundle-", ignore_cleanup_errors=True) as folder:
        file = code or Path(folder) / index.program
        if code is None:
            file.write_bytes(bundle.program)
        app = load_app(str(file), name=index.app)
        store, cache = LocalStore(Path(folder) / "store"), SstCache(Path(folder) / "cache", _CACHE_BYTES)
        with open_program(app, store, cache, MemoryKafka("memory://bundle")) as program:
            before, after, known = index.before, index.after, None
            if index.table is not None and bundle.before is not None and bundle.committed is not None:
                known = bundle.before.select([column.name for column in index.table.key])
                before = replace(before, ssts=_stored(store, index, index.table, _as_sst(bundle.before, index.table)))
                after = replace(after, ssts=before.ssts + _stored(store, index, index.table, bundle.committed))
            replay = BundledReplay(program, before, after, read=dict(bundle.records), known=known)
            _check_inputs(replay, bundle)
            sent = {one.name: SentRows(bundle.sent.get(one.name), _UNKNOWN) for one in replay.stage.writes}
            yield replay, sent, known if index.some_keys else None


def _before(replay: StageReplay, table: Table, written: pa.Table, only: pa.Table | None) -> pa.Table:
    """The rows before the batch of the keys that either side wrote, and of those that were left as they fell due."""
    keys = written
    if replay.due is not None and replay.due.pending:
        due = of_keys(replay.stored.due(replay.due.span, EVERY_HASH).keys, only)
        keys = pa.concat_tables([keys, due.drop_columns([HASH]).cast(keys.schema)])
    keys = distinct(keys.append_column(HASH, pa.array(hash_keys(keys, keys.column_names)))).drop_columns([HASH])
    values, present, _ = replay.stored.of_keys(hash_keys(keys, keys.column_names), keys)
    return pa.Table.from_arrays([*keys.columns, *values.columns, pa.array(present)], schema=before_schema(table))


def _as_sst(before: pa.Table, table: Table) -> pa.Table:
    """The rows before as SSTs have them. None expires: those that had were not there for the batch."""
    rows = before.filter(before[THERE]).drop_columns([THERE])
    internal = {
        HASH: pa.array(hash_keys(rows, [column.name for column in table.key])),
        SEQ: pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
        OP: pa.repeat(pa.scalar(PUT, pa.int8()), rows.num_rows),
    }
    for name, column in internal.items():
        rows = rows.append_column(name, column)
    return completed(rows, sst_schema(table))


def _stored(store: ObjectStore, index: Index, table: Table, rows: pa.Table) -> tuple[Sst, ...]:
    """Write rows of an SST, if there are any, whatever state partitions they were of."""
    if not rows.num_rows:
        return ()
    whole = replace(table, partitions=1)
    return (sst.write(store, None, app=index.app, stage=index.stage, table=whole, partition=0, rows=rows),)


def _check_inputs(replay: BundledReplay, bundle: Bundle) -> None:
    """Raise `Refused` unless the stage's function can get the bundle's records."""
    for name in (each.name for each in bundle.index.inputs):
        if name not in replay.schemas:
            raise Refused(f"the program's stage {replay.after.stage!r} does not read {name!r}, as the bundle's does")
    for name, schema in replay.schemas.items():
        if name not in bundle.records:
            raise Refused(f"the program's stage {replay.after.stage!r} reads {name!r}, of which the bundle has nothing")
        found = bundle.records[name].rows.schema
        if found.names != schema.names or found.types != schema.types:
            raise Refused(
                f"the program's {name!r} has columns ({schema.to_string()}), and the bundle's others "
                f"({found.to_string()})",
                hint="replay it with a program that reads the same columns",
            )
