"""Records of a topic as table rows: decoded keys and values, and the record's location."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from ...pipeline.kafka.columns import MessageColumns
from ...pipeline.kafka.protocol import Kafka
from ...state.records import RECORD_OFFSET, RECORD_PARTITION, Range
from ...store.archive.columns import TIME
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.versions.keys import RESERVED_COLUMNS
from ..attach.protocol import APPENDED, DELETED, LOGGED
from .formats import BadValue, Format, columns_of, fields_of, is_empty

_log = logging.getLogger("slackwater")
PATIENCE_S = 60.0
_ADDRESS = [pa.field(RECORD_PARTITION, pa.int32()), pa.field(RECORD_OFFSET, pa.int64())]
_LOG = [pa.field(DELETED, pa.bool_()), pa.field(LOGGED, pa.int64())]
_READ = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": TIME,
    }
)
_PREFIX = "value_"
_OWN_COLUMNS = frozenset({RECORD_PARTITION, RECORD_OFFSET, DELETED, LOGGED, APPENDED, *RESERVED_COLUMNS})
_UNMERGED_ROWS = 100_000


@dataclass(slots=True)
class RecordReader:
    """Reads a topic's records as rows. Raises `Refused`, with the record's location, if a record cannot be decoded."""

    kafka: Kafka
    topic: str
    key: Format
    value: Format
    _has_warned: bool = field(default=False, init=False)

    @property
    def log_schema(self) -> pa.Schema:
        """Columns of `rows`."""
        return pa.schema([*self.key_schema, *self.value_schema, *_LOG])

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema(fields_of(self.key.type, "key"))

    @property
    def value_schema(self) -> pa.Schema:
        """Columns of the values. A field gets a prefix if its name is used by a key column or by slackwater."""
        taken, fields = _taken_names(self.key_schema), fields_of(self.value.type, "value")
        return pa.schema([*(inner.with_name(_column_of(inner.name, taken)) for inner in fields), *_ADDRESS])

    def learn(self, samples: pa.Table, stored: tuple[pa.Schema, pa.Schema] | None) -> None:
        """Choose the columns from sample records. `stored` has the stored columns of key and value."""
        for side, kind, known in (("key", self.key, _stored_key(stored)), ("value", self.value, _stored_value(stored))):
            there = samples.filter(pc.is_valid(samples[side]))
            self._call(partial(kind.learn, stored=known), side, there)
            self._call(kind.decode, side, there)
            if is_empty(kind.type):
                raise Refused(
                    f"topic {self.topic!r} has no record from which to infer the columns of its {side}s",
                    hint="attach it once it has one, or name the columns: --columns 'amount double, …'",
                )
        if own := [name for name in self.key_schema.names if name.casefold() in _OWN_COLUMNS]:
            raise Refused(
                f"the keys of topic {self.topic!r} have a field {own[0]!r}, a name that slackwater uses itself",
                hint="name a decoder of yours that gives the field another name: --key FILE:FUNCTION",
            )

    def samples(self, *reads: Sequence[Range]) -> pa.Table:
        """Return the undecoded records of several reads. Raises `Gone`."""
        parts = [batch for spans in reads for batch in self._chunks([span for span in spans if span.first < span.last])]
        return pa.Table.from_batches(parts, _READ)

    def rows(self, spans: Sequence[Range], topic_id: str) -> Iterator[pa.Table]:
        """Yield the rows of records: key, values, address, `DELETED` for tombstones, and `LOGGED`.

        Records without a key are left out. Raises `Gone`, `NewFields` and `Unavailable`.
        """
        latest = dict[int, int]()
        for records in self._chunks(spans, topic_id):
            logged = _running_maxima(records["timestamp"].cast(pa.int64()), records["partition"], latest)
            table = pa.Table.from_batches([records]).append_column(LOGGED, logged)
            if records["key"].null_count:
                self._warn(records.filter(pc.is_null(records["key"])))
                table = table.filter(pc.is_valid(table["key"]))
            if table.num_rows:
                yield self._decode(table)

    def _chunks(self, spans: Sequence[Range], topic_id: str = "") -> Iterator[pa.RecordBatch]:
        for chunk in self.kafka.read_ranges(self.topic, spans, patience_s=PATIENCE_S, topic_id=topic_id):
            yield MessageColumns(*chunk).to_batch(_READ)

    def _decode(self, table: pa.Table) -> pa.Table:
        deleted = np.asarray(pc.is_null(table["value"]))
        keys = self._call(self.key.decode, "key", table)
        values = self._call(self.value.decode, "value", table.filter(pa.array(~deleted)))
        rows = pa.array(np.cumsum(~deleted) - 1, mask=deleted)
        columns = [*columns_of(keys), *(column.take(rows) for column in columns_of(values))]
        own = (table["partition"], table["offset"], pa.array(deleted), table[LOGGED])
        return pa.table([*columns, *own], schema=self.log_schema)

    def _call(self, decode: Callable[[pa.BinaryArray], Any], side: str, table: pa.Table) -> Any:
        try:
            return decode(table[side].combine_chunks())
        except BadValue as error:
            partition, offset = (table[name][error.row].as_py() for name in ("partition", "offset"))
            raise Refused(
                f"the {side} of {self.topic}[{partition}]@{offset} cannot be decoded: {error.why}",
                hint=f"choose another --{side}: string, bytes, long, int, double, json, registry, or a decoder of "
                "yours, FILE:FUNCTION; --columns 'NAME TYPE, …' sets the types of JSON fields",
            ) from error

    def _warn(self, records: pa.RecordBatch) -> None:
        if not self._has_warned:
            self._has_warned = True
            partition, offset = (records[name][0].as_py() for name in ("partition", "offset"))
            _log.warning(
                "records without a key are left out, as a KTable does: %s[%d]@%d", self.topic, partition, offset
            )


def _stored_key(stored: tuple[pa.Schema, pa.Schema] | None) -> pa.StructType | None:
    return None if stored is None else pa.struct(list(stored[0]))


def _stored_value(stored: tuple[pa.Schema, pa.Schema] | None) -> pa.StructType | None:
    if stored is None:
        return None
    taken, fields = _taken_names(stored[0]), [inner for inner in stored[1] if inner not in _ADDRESS]
    return pa.struct([inner.with_name(_field_of(inner.name, taken)) for inner in fields])


def _taken_names(key: pa.Schema) -> frozenset[str]:
    return _OWN_COLUMNS | {name.casefold() for name in key.names}


def _is_prefixed(field: str, taken: frozenset[str]) -> bool:
    """Return True for a used name, with or without prefixes, so that the columns of `id` and `value_id` differ."""
    name = field.casefold()
    return name in taken or (name.startswith(_PREFIX) and _is_prefixed(name.removeprefix(_PREFIX), taken))


def _column_of(field: str, taken: frozenset[str]) -> str:
    return f"{_PREFIX}{field}" if _is_prefixed(field, taken) else field


def _field_of(column: str, taken: frozenset[str]) -> str:
    """Return the field for which `_column_of` returned this column."""
    field = column.removeprefix(_PREFIX)
    return field if field != column and _is_prefixed(field, taken) else column


def _running_maxima(times: pa.Array, partitions: pa.Array, latest: dict[int, int]) -> pa.Array:
    """Return the largest time until then in each record's partition; `latest` has those of earlier chunks.

    In a partition the last record of a key counts, whatever its time. A key may be in two partitions, if some were
    added: then the later one counts.
    """
    logged, numbers = np.array(times), np.asarray(partitions)
    for partition in np.unique(numbers).tolist():
        own = numbers == partition
        logged[own] = np.maximum.accumulate(np.maximum(logged[own], latest.get(partition, 0)))
        latest[partition] = int(logged[own][-1])
    return pa.array(logged)


def last_of_each_key(parts: Sequence[pa.Table], key: list[str]) -> pa.Table:
    """Return the last row of each key of a log."""
    rows = pa.concat_tables(parts)
    rows = normalise_keys(rows.take(pc.sort_indices(rows[LOGGED])).combine_chunks(), key)
    order, repeats = sort_keys(hash_keys(rows, key), rows.select(key))
    return rows.take(pa.array(order[np.append(~repeats[1:], True)])) if rows.num_rows else rows


def merge_rows(parts: Iterable[pa.Table], key: list[str], schema: pa.Schema) -> pa.Table:
    """Return the last row of each key. Memory holds these rows, and a limited number of other rows."""
    merged, unmerged = schema.empty_table(), list[pa.Table]()
    for part in parts:
        unmerged.append(part)
        if sum(table.num_rows for table in unmerged) > max(_UNMERGED_ROWS, merged.num_rows):
            merged, unmerged = last_of_each_key([merged, *unmerged], key), []
    return last_of_each_key([merged, *unmerged], key) if unmerged else merged
