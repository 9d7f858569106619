"""The table of a stage's rejected records, `<stage>_rejected`; their topic; and records of the table as inputs again.

The topic has messages as they came, with the headers of Kafka Streams' dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from ...errors import Refused, Unavailable
from ...state.failing import RECORD
from ...state.rejected_schema import REJECTED_RECORDS
from ...store.compaction import merge
from ...store.compaction.picker import pick
from ...store.compaction.plan import apply, newest_first
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import writer as sst
from ...store.sst.hashing import hash_keys
from ...store.sst.types import PUT, arrow_schema
from ...store.versions.manifest import Manifest, SideTable
from ...store.versions.side_tables import REJECTED
from ..api.stage import Stage
from ..kafka.protocol import Headers, Kafka, NotTaken, Record

SCHEMA = arrow_schema(REJECTED_RECORDS.columns)
_KEY = [column.name for column in REJECTED_RECORDS.key]


@dataclass(frozen=True, slots=True)
class RejectedTable:
    """The table's rows, where they are: in the store (or spool) and the cache of the stage's batches."""

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str

    def rows(self, manifest: Manifest) -> pa.Table:
        """All rows of a version's table, of `SCHEMA`."""
        table = manifest.side_tables.get(REJECTED)
        ssts = newest_first(table.ssts) if table is not None else ()
        blocks = (block for sst in ssts for block in self.cache.open(self.store, sst, REJECTED_RECORDS).blocks)
        if not (parts := [pa.Table.from_batches([block.stored]) for block in blocks]):
            return SCHEMA.empty_table()
        return merge.merge_rows(parts, REJECTED_RECORDS, drop_tombstones=True).select(SCHEMA.names)

    def put(
        self, base: Manifest, changed: Sequence[dict[str, object]], seq: int, *, added: int, waiting: int
    ) -> SideTable:
        """The table after `base` with these rows, at least one, as `row_of` gives them; many runs are merged.

        Rows of keys that are there replace them. `added` is how many are new; `waiting` by how many more records wait,
        negative when some were retried.
        """
        before = base.side_tables.get(REJECTED) or SideTable(REJECTED_RECORDS)
        rows = pa.Table.from_pylist(list(changed), schema=SCHEMA)
        hashed = pa.table(
            [
                pa.array(hash_keys(rows, _KEY)),
                *rows.columns,
                pa.repeat(pa.scalar(seq, pa.int64()), rows.num_rows),
                pa.repeat(pa.scalar(PUT, pa.int8()), rows.num_rows),
            ],
            names=["_hash", *SCHEMA.names, "_seq", "_op"],
        )
        new = sst.write(
            self.store, self.cache, app=self.app, stage=self.stage, table=REJECTED_RECORDS, partition=0, rows=hashed
        )
        ssts = (*before.ssts, new)
        for due in pick(ssts, REJECTED_RECORDS.partitions, REJECTED_RECORDS.compaction):
            ssts = apply(ssts, [merge.run(self.store, self.cache, self.app, self.stage, REJECTED_RECORDS, due)])
        return replace(
            before,
            table=REJECTED_RECORDS,
            ssts=ssts,
            rows=added,
            total=before.total + added,
            waiting=before.waiting + waiting,
        )


def row_of(letter: DeadLetter, *, version: int, now_ms: int) -> dict[str, object]:
    """A record that is rejected for the first time, as a row of the table."""
    return {
        **{name: getattr(letter, name) for name in SCHEMA.names if hasattr(letter, name)},
        "headers": [{"name": header, "value": value} for header, value in letter.headers],
        "time": letter.time_ms * 1_000,
        "version": version,
        "rejected_at": now_ms * 1_000,
        "attempts": 1,
        "retried": None,
    }


_PREFIX = "__streams.errors."
_MOST = 65_536
"""Bytes of a header's value: brokers bound messages, headers and all."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record as it came, and why it was rejected.

    Attributes:
        input: The declared name of its input.
        row: Its row in its message; 0 for a user's topic.
        time_ms: Its message's time, in ms since 1970.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: str
    message: str
    stack: str
    input: str = ""
    row: int = 0
    time_ms: int = 0

    def headers_of(self) -> list[tuple[str, bytes | None]]:
        """Its own headers, and those of KIP-1034: `__streams.errors.exception` and so on, as text."""
        why = {
            "exception": self.error,
            "stacktrace": self.stack,
            "message": self.message,
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
        }
        own = [(name, value) for name, value in self.headers if not name.startswith(_PREFIX)]
        return [*own, *((_PREFIX + name, text.encode()[:_MOST]) for name, text in why.items())]


def send_rejects(kafka: Kafka, topic: str, letters: Sequence[DeadLetter], *, patience_s: float) -> None:
    """Write rejected records durably. At least once: a batch that is not committed afterwards writes them again.

    Raises `Refused` where the broker does not take one: the topic is not there, we may not write to it, or it is full;
    `Unavailable` where it has been away for longer than `patience_s`.
    """
    try:
        kafka.send(
            topic, (Record(one.value, None, one.key, one.headers_of()) for one in letters), patience_s=patience_s
        )
    except NotTaken as error:
        message = f"the topic of rejected records {topic!r} takes none: {error.why}"
        hint = "the batch was dropped whole and nothing is lost: make room there, or name another topic, and run again"
        raise (Unavailable if error.passing else Refused)(message, hint=hint) from None


def inputs_of(
    stage: Stage, rows: pa.Table, schemas: Mapping[str, pa.Schema]
) -> tuple[dict[str, pa.Table], list[dict[str, object]]]:
    """Rejected records by input, numbered as `RECORD`; and the table's rows, at the places that are these numbers.

    Raises `Refused` where a record was on an input, or of columns, that the program's stage does not read.
    """
    inputs, ordered = {}, list[dict[str, object]]()
    each = rows.to_pylist()
    for wrong in {str(one["input"]) for one in each} - set(schemas):
        raise Refused(f"stage {stage.name!r} reads no {wrong!r}, from which rejected records are")
    for name, schema in schemas.items():
        mine = [one for one in each if one["input"] == name]
        numbers = pa.array(range(len(ordered), len(ordered) + len(mine)), pa.int64())
        inputs[name] = rows_of(stage, name, mine, schema).append_column(RECORD, numbers)
        ordered += mine
    return inputs, ordered


def rows_of(stage: Stage, name: str, rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows of the table as an input of the stage has them. Raises `Refused` where it has other columns now."""
    if name not in stage.channels:
        columns = [[one[each] for one in rows] for each in ("key", "value", "topic", "partition", "offset", "time")]
        found = [_headers(one["headers"]) for one in rows]
        every = zip([*columns, [0] * len(rows), found], schema, strict=False)  # most inputs have no headers
        return pa.Table.from_arrays([pa.array(each, field.type) for each, field in every], schema=schema)
    if not rows:
        return schema.empty_table()
    parts = []
    for one in rows:
        with pa.ipc.open_stream(one["value"]) as reader:
            parts.append(reader.read_all())
    try:
        return pa.concat_tables([part.select(schema.names).cast(schema) for part in parts])
    except (pa.ArrowException, KeyError) as error:
        raise Refused(
            f"rejected rows of {name!r} have other columns than the program's: {error}",
            hint="run the program that they were rejected by",
        ) from error


def _headers(stored: Any) -> list[dict[str, object]] | None:
    """A record's headers, as the table has them, as Structured Streaming's Kafka source does."""
    return [{"key": each["name"], "value": each["value"]} for each in stored] if stored else None
