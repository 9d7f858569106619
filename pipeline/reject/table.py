"""The table and the topic of a stage's rejected records, and rejected records as inputs of a retry.

The topic gets the messages unchanged, with the headers of Kafka Streams' dead letter queues added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from ...errors import Refused, Unavailable
from ...state.failing import RECORD
from ...store.compaction import merge
from ...store.compaction.picker import pick
from ...store.compaction.plan import apply_results, newest_first
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import writer as sst
from ...store.sst.hashing import hash_keys
from ...store.sst.schema import PUT, arrow_schema
from ...store.versions.manifest import Manifest, SideTable
from ...store.versions.side_tables import REJECTED, REJECTED_RECORDS
from ..api.stage import Stage
from ..kafka.protocol import Headers, Kafka, Record, SendFailed

SCHEMA = arrow_schema(REJECTED_RECORDS.columns)
_KEY = [column.name for column in REJECTED_RECORDS.key]


@dataclass(frozen=True, slots=True)
class RejectedTable:
    """Reads and writes the table of a stage's rejected records, in the store (or spool) and cache of its batches."""

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str

    def read_rows(self, manifest: Manifest) -> pa.Table:
        table = manifest.side_tables.get(REJECTED)
        ssts = newest_first(table.ssts) if table is not None else ()
        blocks = (block for sst in ssts for block in self.cache.open(self.store, sst, REJECTED_RECORDS).blocks)
        if not (parts := [pa.Table.from_batches([block.stored]) for block in blocks]):
            return SCHEMA.empty_table()
        return merge.merge_rows(parts, REJECTED_RECORDS, drop_tombstones=True).select(SCHEMA.names)

    def upsert(
        self, base: Manifest, changed: Sequence[dict[str, object]], seq: int, *, added: int, waiting: int
    ) -> SideTable:
        """Upsert rows, merge runs if due, and return the table of the version after `base`.

        `changed` has rows in the format of `rejected_row`. `added` is the number of new rows; `waiting` is the change
        in the number of records that wait for a retry, negative if some were retried.
        """
        previous = base.side_tables.get(REJECTED) or SideTable(REJECTED_RECORDS)
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
        new = sst.write_sst(
            self.store, self.cache, app=self.app, stage=self.stage, table=REJECTED_RECORDS, partition=0, rows=hashed
        )
        ssts = previous.ssts.plus((new,))
        for compaction in pick(ssts, REJECTED_RECORDS.partitions, REJECTED_RECORDS.compaction):
            ssts = apply_results(
                ssts, [merge.run_compaction(self.store, self.cache, self.app, self.stage, REJECTED_RECORDS, compaction)]
            )
        return replace(
            previous,
            table=REJECTED_RECORDS,
            ssts=ssts,
            rows=added,
            total=previous.total + added,
            waiting=previous.waiting + waiting,
        )


def rejected_row(record: DeadLetter, *, version: int, now_ms: int) -> dict[str, object]:
    return {
        **{name: getattr(record, name) for name in SCHEMA.names if hasattr(record, name)},
        "headers": [{"name": header, "value": value} for header, value in record.headers],
        "time": record.time_ms * 1_000,
        "version": version,
        "rejected_at": now_ms * 1_000,
        "attempts": 1,
        "retried": None,
    }


_PREFIX = "__streams.errors."
_MAX_HEADER_BYTES = 65_536
"""Maximum bytes of a header's value, since brokers limit the size of a message with its headers."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Rejected record as it was read, with its error.

    Attributes:
        input: Declared name of the record's input.
        row: The record's row in its message; 0 for a user's topic.
        time_ms: The message's time, in ms since 1970.
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

    def message_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the record's own headers, and headers of KIP-1034 with the error and the record's location."""
        fields = {
            "exception": self.error,
            "stacktrace": self.stack,
            "message": self.message,
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
        }
        own = [(name, value) for name, value in self.headers if not name.startswith(_PREFIX)]
        return [*own, *((_PREFIX + name, text.encode()[:_MAX_HEADER_BYTES]) for name, text in fields.items())]


def send_rejects(kafka: Kafka, topic: str, letters: Sequence[DeadLetter], *, patience_s: float) -> None:
    """Write rejected records durably, at least once: a batch that is retried before its commit writes them again.

    Raises `Refused` if the broker rejects a record: the topic is missing, full, or not writable for this user. Raises
    `Unavailable` if the broker does not answer for longer than `patience_s`.
    """
    try:
        kafka.send(
            topic, (Record(row.value, None, row.key, row.message_headers()) for row in letters), patience_s=patience_s
        )
    except SendFailed as error:
        message = f"cannot write to the topic of rejected records, {topic!r}: {error.why}"
        hint = "the batch was rolled back and nothing is lost: make room in the topic, or name another, and run again"
        raise (Unavailable if error.passing else Refused)(message, hint=hint) from None


def inputs_for_retry(
    stage: Stage, rows: pa.Table, schemas: Mapping[str, pa.Schema]
) -> tuple[dict[str, pa.Table], list[dict[str, object]]]:
    """Return rejected records by input, numbered in `RECORD`, and the table's rows in the order of these numbers.

    Raises `Refused` if the program's stage lacks the input of a record, or if that input has other columns now.
    """
    inputs, ordered = {}, list[dict[str, object]]()
    records = rows.to_pylist()
    for unknown in {str(record["input"]) for record in records} - set(schemas):
        raise Refused(f"stage {stage.name!r} does not read {unknown!r}, the input of some rejected records")
    for name, schema in schemas.items():
        own_records = [record for record in records if record["input"] == name]
        numbers = pa.array(range(len(ordered), len(ordered) + len(own_records)), pa.int64())
        inputs[name] = to_input_rows(stage, name, own_records, schema).append_column(RECORD, numbers)
        ordered += own_records
    return inputs, ordered


def to_input_rows(stage: Stage, name: str, rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    if name not in stage.channels:
        columns = [[row[column] for row in rows] for column in ("key", "value", "topic", "partition", "offset", "time")]
        headers = [_kafka_headers(row["headers"]) for row in rows]
        columns_and_fields = zip(
            [*columns, [0] * len(rows), headers], schema, strict=False
        )  # for most inputs, the schema has no headers
        return pa.Table.from_arrays(
            [pa.array(values, field.type) for values, field in columns_and_fields], schema=schema
        )
    if not rows:
        return schema.empty_table()
    parts = []
    for row in rows:
        with pa.ipc.open_stream(row["value"]) as reader:
            parts.append(reader.read_all())
    try:
        return pa.concat_tables([part.select(schema.names).cast(schema) for part in parts])
    except (pa.ArrowException, KeyError) as error:
        raise Refused(
            f"rejected rows of {name!r} do not have the program's columns: {error}",
            hint="retry them with the program that rejected them",
        ) from error


def _kafka_headers(stored: Any) -> list[dict[str, object]] | None:
    return [{"key": header["name"], "value": header["value"]} for header in stored] if stored else None
