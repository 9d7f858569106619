"""`decode`: a column of structs from schema-registry messages, with detection of bad messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...common.arguments import checked
from ...common.validation import installing
from ...errors import BadRecord, NotFound, Refused, Usage
from ..source.worker import ERROR_MARK
from .avro import AvroReader
from .json_schema import JsonReader
from .protobuf import ProtobufReader
from .registry import Registry
from .schema import NO_SCHEMA, BadMessage, Reader, Schema, schema_ids

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_NEEDED = ("datafusion", "ptars", "grpc_tools")
_SIDES = ("key", "value")
_MODES = ("FAILFAST", "PERMISSIVE")
_ADDRESS = ("topic", "partition", "offset")

_topics: ContextVar[tuple[str, ...]] = ContextVar("topics", default=())


@contextmanager
def reading(topics: Sequence[str]) -> Iterator[None]:
    """Set the user topics that a stage reads, for default subject names, while the stage's function runs."""
    token = _topics.set(tuple(topics))
    try:
        yield
    finally:
        _topics.reset(token)


@checked
def decode(
    column: str | Column,
    *,
    registry: str,
    subject: str = "",
    version: int | None = None,
    message: str = "",
    mode: Literal["FAILFAST", "PERMISSIVE", "failfast", "permissive"] = "FAILFAST",
    reason: str = "",
    patience_s: float = 60.0,
) -> Column:
    """Decode messages in Confluent's wire format to structs: Avro, Protobuf or JSON Schema, in whole batches.

    The struct has the fields of the subject's newest schema when the app starts, or of `version`. Messages of other
    schema versions are converted to it, including versions registered while the app runs.

    Args:
        column: `"value"` or `"key"` of a topic, so that errors name the message's offset; or any binary column.
        registry: The registry's URL. Set SLACKWATER_REGISTRY_USER_INFO to `user:password` if the registry requires it.
        subject: The schema's subject. Empty means the name of the stage's only topic with `-value` or `-key`.
        version: The subject's version; None for the newest at the start.
        message: Protobuf only: full name of the message type. Empty means the schema's first.
        mode: `FAILFAST` stops the stage at a message that cannot be decoded, and nothing is lost. `PERMISSIVE` returns
            null for the message. Case-insensitive, as in Spark.
        reason: `PERMISSIVE` only: name of an extra string field with the error of a message that cannot be decoded,
            whose other fields are null then. Empty means no such field.
        patience_s: Maximum time that a registry may be unavailable before the stage stops.

    Returns:
        A struct column, null where the message is null.

    Raises:
        NotFound: The registry has no such subject or version, or the schema has no such message type.
        Refused: A required package is missing, Spark is older than 4.1, the schema has no columns, or the registry
            denies access.
        Unavailable: The registry has not answered for `patience_s`.
        Usage: An argument is invalid.
    """
    from pyspark.sql import functions as F

    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise Refused(f"decode needs {', '.join(missing)}", hint=installing("registry"))
    if not hasattr(F, "arrow_udf"):
        raise Refused("decode needs Arrow functions, which Spark has since 4.1", hint="use a later Spark")
    fails = _checked_mode(mode, reason) == "FAILFAST"
    client = Registry.of(registry, patience_s)
    subject = subject or _subject(column)
    schema = client.latest(subject, version)
    kind = _spark_type(with_reason(open_reader(schema, message).type, reason))
    addressed = isinstance(column, str) and column in _SIDES
    parts = [F.col(column) if isinstance(column, str) else column, *map(F.col, _ADDRESS if addressed else ())]
    # `decoded` is pickled with its variables; workers open the reader themselves.
    error_mark = ERROR_MARK

    def decoded(messages: pa.Array, *address: pa.Array) -> pa.Array:
        with error_mark.own():
            reader = open_reader(schema, message)
            values, bad = read_batch(messages, reader, schema.kind, client.by_id, every=not fails)
            if bad and fails:
                raise BadRecord(_sentence(bad[0], address, len(messages)))
            return reasoned(values, bad, reason)

    format_json = described(registry, subject, version, message)
    decoded.__name__ = f"decode_{xxhash.xxh64_hexdigest(format_json.encode())}"
    _formats[decoded.__name__] = format_json
    struct: Column = F.arrow_udf(decoded, kind)(*parts)
    return struct


def described(registry: str, subject: str, version: int | None, message: str) -> str:
    """Return `FieldSource.format` of a decoded field: the arguments of `decode` as JSON."""
    arguments = {"registry": registry, "subject": subject, "version": version, "message": message}
    return json.dumps({name: value for name, value in arguments.items() if value})


_formats: dict[str, str] = {}


def format_of(function: str) -> str:
    """Return `FieldSource.format` for a function of a query plan; empty if the function was not made by `decode`."""
    return _formats.get(function, "")


def _checked_mode(mode: str, reason: str) -> str:
    """Return the mode in capitals. Raises `Usage` for an unknown mode, or for a reason without `PERMISSIVE`."""
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise Usage(f"mode={mode!r} of decode is neither {' nor '.join(_MODES)}")
    if reason and mode.upper() != "PERMISSIVE":
        raise Usage(f"reason={reason!r} of decode needs mode='PERMISSIVE': with {mode} a bad message stops the stage")
    return mode.upper()


def with_reason(kind: pa.DataType, reason: str) -> pa.DataType:
    """Return a decoded column's type, with a field for the reason unless `reason` is empty.

    Raises `Usage` if the type has no fields, or already has one of that name.
    """
    if not reason:
        return kind
    if not pa.types.is_struct(kind):
        raise Usage(f"reason={reason!r} of decode needs a schema that is a record, not {kind}")
    if reason.lower() in (field.name.lower() for field in kind):
        raise Usage(f"reason={reason!r} of decode is already a field of the schema", hint="choose another name")
    return pa.struct([*kind, pa.field(reason, pa.string())])


def reasoned(values: pa.Array, bad: Sequence[Bad], reason: str) -> pa.Array:
    """Return decoded values, with the reason of each bad one unless `reason` is empty."""
    if not reason:
        return values
    reasons_by_row = {bad_message.row: bad_message.why for bad_message in bad}
    reasons = pa.array(
        [reasons_by_row.get(row) for row in range(len(values))] if reasons_by_row else [None] * len(values), pa.string()
    )
    kind = with_reason(values.type, reason)
    missing = pc.and_(values.is_null(), reasons.is_null())
    return pa.StructArray.from_arrays([*values.flatten(), reasons], fields=list(kind), mask=missing)


def _spark_type(kind: pa.DataType) -> DataType:
    """Return the Spark type of an Arrow type. Raises `Refused` if Spark has none."""
    from pyspark.errors import PySparkTypeError

    from ..source.spark_types import spark_type_of

    try:
        return spark_type_of(kind)
    except PySparkTypeError as error:
        raise Refused(f"Spark has no type for a part of the schema: {error}") from None


def _subject(column: str | Column) -> str:
    topics = _topics.get()
    is_side = isinstance(column, str) and column in _SIDES
    if not is_side or len(topics) != 1:
        why = f"the stage reads {len(topics)} topics" if is_side else "the column is not a topic's value or key"
        raise Usage(
            f"missing subject= of decode ({why})",
            hint='for example decode("value", registry=…, subject="orders-value")',
        )
    return f"{topics[0]}-{column}"


def _sentence(bad: Bad, address: Sequence[pa.Array], count: int) -> str:
    """Return the error message for a bad message. `address` holds topic, partition and offset arrays, or nothing."""
    where = f"row {bad.row} of a batch of {count}"
    if address:
        topic, partition, offset = (part[bad.row].as_py() for part in address)
        where = f"topic {topic!r}, partition {partition}, offset {offset}"
    return f"the message at {where} cannot be decoded: {bad.why}"


@lru_cache(maxsize=64)
def open_reader(schema: Schema, message: str = "") -> Reader:
    """Return a reader of messages into a schema's columns; `message` is the Protobuf type, empty for the first.

    Raises `NotFound` if the schema has no such type, and `Refused` if the schema has no columns.
    """
    if schema.kind == "PROTOBUF":
        return ProtobufReader(schema, message)
    if schema.kind not in ("AVRO", "JSON"):
        raise Refused(f"schemas of type {schema.kind} are not supported", hint="AVRO, PROTOBUF and JSON are")
    return AvroReader(schema) if schema.kind == "AVRO" else JsonReader(schema)


@dataclass(frozen=True, slots=True)
class Bad:
    """A message that cannot be decoded: its row in the batch, and the reason."""

    row: int
    why: str


def read_batch(
    messages: pa.Array, reader: Reader, kind: str, schema_of: Callable[[int], Schema], *, every: bool = True
) -> tuple[pa.Array, tuple[Bad, ...]]:
    """Decode all messages of a batch to values, null where a message is null or bad, and the bad messages.

    Args:
        messages: Binary; as they came from Kafka.
        reader: Reader of the declared schema.
        kind: The declared schema's kind; messages of another kind are bad.
        schema_of: Returns the schema with an id; raises `NotFound` if there is none.
        every: True to find all bad messages; False to stop at the first, in which case the values are unusable.
    """
    messages = messages.cast(pa.binary())
    ids = schema_ids(messages)
    bad: list[Bad] = []
    values, rows = [pa.nulls(0, reader.type)], [np.empty(0, np.int64)]

    def refuse(at: npt.NDArray[np.int64], why: str) -> None:
        bad.extend(Bad(row, why) for row in at.tolist())

    def read(writer: Schema, number: int, at: npt.NDArray[np.int64], *, first: bool) -> None:
        """Read the messages of one schema at these rows; halve the rows to isolate bad messages, which are few."""
        if bad and not every:
            return
        subset = messages if len(at) == len(messages) else messages.take(pa.array(at))
        try:
            values.append(reader.read(writer, subset))
            rows.append(at)
        except BadMessage as error:
            likely = reader.likely(writer, subset) if first else np.ones(len(at), bool)
            if not likely.all():
                # The quick check found these, so the rest need no halving.
                refuse(at[~likely], f"schema id {number}: the bytes do not match the {kind.capitalize()} schema")
                if likely.any():
                    read(writer, number, at[likely], first=False)
            elif len(at) == 1:
                refuse(at, f"schema id {number}: {error.sentence}")
            else:
                for half in np.split(at, [len(at) // 2]):
                    read(writer, number, half, first=False)

    for number in np.unique(ids).tolist():
        at = np.flatnonzero(ids == number)
        if bad and not every:
            break
        if number == NO_SCHEMA:
            bad_rows = at[np.asarray(messages.is_valid())[at]].tolist()
            bad += [Bad(row, _no_message(messages[row].as_py())) for row in bad_rows]
            continue
        try:
            # Only an unknown id is the message's fault; other errors of the registry stop the stage.
            writer = schema_of(number)
        except NotFound as error:
            refuse(at, error.sentence)
            continue
        if writer.kind != kind:
            refuse(at, f"schema id {number} is of type {writer.kind}, not {kind}")
            continue
        num_bad, num_read = len(bad), len(values)
        try:
            read(writer, number, at, first=True)
        except Refused as error:
            del bad[num_bad:], values[num_read:], rows[num_read:]
            refuse(at, f"schema id {number}: {error.sentence}")
    positions = np.full(len(messages), -1)
    read_rows = np.concatenate(rows)
    positions[read_rows] = np.arange(len(read_rows))
    decoded = pa.concat_arrays(values)
    if not np.array_equal(positions, np.arange(len(decoded))):
        decoded = decoded.take(pa.array(positions, mask=positions < 0))
    return decoded, tuple(sorted(bad, key=lambda bad_message: bad_message.row))


def _no_message(data: bytes) -> str:
    shown = data[:8].hex(" ")
    why = f"it has no schema registry header (magic byte 0 and schema id): it begins with {shown}"
    return why if data else "it is empty"
