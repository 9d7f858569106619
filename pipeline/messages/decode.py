"""`decode`: messages of a schema registry, of whatever schemas, as a column of structs; and which of them are none."""

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

from ...common.argument_types import checked
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
    """While a stage's function runs: the user's topics that it reads, after which subjects are named."""
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
    """Messages in Confluent's wire format as structs: Avro, Protobuf or JSON Schema, whole batches at a time.

    The struct is that of the subject's newest schema when the app starts, or of `version`. Messages of other versions
    are brought to it, also of those that are registered while the app runs.

    Args:
        column: `"value"` or `"key"` of a topic, so that errors name the message's offset; or any binary column.
        registry: The registry's URL. SLACKWATER_REGISTRY_USER_INFO has `user:password` where it takes them.
        subject: Whose schema; the name of the stage's only topic with `-value` or `-key` when empty.
        version: Of the subject; None for the newest at the start.
        message: Of Protobuf, the full name of the message type; the schema's first when empty.
        mode: A message that cannot be decoded stops the stage (`FAILFAST`; nothing is lost), or becomes null
            (`PERMISSIVE`). In any case of letters, as Spark's modes.
        reason: With `PERMISSIVE`, the name of one more field of the struct, a string that says why a message could not
            be decoded. Such a message is then a struct whose other fields are null. No such field when empty.
        patience_s: How long a registry may be away before the stage stops.

    Returns:
        A struct, null where the message is null.

    Raises:
        NotFound: The registry has no such subject or version, or its schema no such message type.
        Refused: What is needed is not installed, Spark is 4.0, no columns can be made of the schema, or the registry
            forbids it.
        Unavailable: The registry has not answered for `patience_s`.
        Usage: An argument is invalid.
    """
    from pyspark.sql import functions as F

    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise Refused(f"decode needs {', '.join(missing)}", hint=installing("registry"))
    if not hasattr(F, "arrow_udf"):
        raise Refused("decode needs functions of Arrow, which Spark has from 4.1 on", hint="run on a later Spark")
    fails = _checked_mode(mode, reason) == "FAILFAST"
    known = Registry.of(registry, patience_s)
    subject = subject or _subject(column)
    schema = known.latest(subject, version)
    kind = _spark_type(with_reason(open_reader(schema, message).type, reason))
    addressed = isinstance(column, str) and column in _SIDES
    parts = [F.col(column) if isinstance(column, str) else column, *map(F.col, _ADDRESS if addressed else ())]
    # What runs in workers takes these with it; the reader is made there.
    mark = ERROR_MARK

    def decoded(messages: pa.Array, *address: pa.Array) -> pa.Array:
        with mark.own():
            reader = open_reader(schema, message)
            values, bad = read_batch(messages, reader, schema.kind, known.by_id, every=not fails)
            if bad and fails:
                raise BadRecord(_sentence(bad[0], address, len(messages)))
            return reasoned(values, bad, reason)

    how = described(registry, subject, version, message)
    decoded.__name__ = f"decode_{xxhash.xxh64_hexdigest(how.encode())}"
    _formats[decoded.__name__] = how
    made: Column = F.arrow_udf(decoded, kind)(*parts)
    return made


def described(registry: str, subject: str, version: int | None, message: str) -> str:
    """How a stage decodes messages, as manifests keep it (`FieldSource.format`)."""
    said = {"registry": registry, "subject": subject, "version": version, "message": message}
    return json.dumps({name: value for name, value in said.items() if value})


_formats: dict[str, str] = {}


def format_of(function: str) -> str:
    """How a function in a plan decodes messages, as `FieldSource.format`; empty for one that does not."""
    return _formats.get(function, "")


def _checked_mode(mode: str, reason: str) -> str:
    """Return the mode in capitals. Raises `Usage` where it is none, or where a reason would never be seen."""
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise Usage(f"mode={mode!r} of decode is neither {' nor '.join(_MODES)}")
    if reason and mode.upper() != "PERMISSIVE":
        raise Usage(f"reason={reason!r} of decode needs mode='PERMISSIVE': with {mode} a bad message stops the stage")
    return mode.upper()


def with_reason(kind: pa.DataType, reason: str) -> pa.DataType:
    """Return the type of a decoded column with a field for the reason, as it is when `reason` is empty.

    Raises `Usage` where the type has no fields, or one of that name.
    """
    if not reason:
        return kind
    if not pa.types.is_struct(kind):
        raise Usage(f"reason={reason!r} of decode needs a schema that is a record, not {kind}")
    if reason.lower() in (field.name.lower() for field in kind):
        raise Usage(f"reason={reason!r} of decode is a field of the schema already", hint="choose another name")
    return pa.struct([*kind, pa.field(reason, pa.string())])


def reasoned(values: pa.Array, bad: Sequence[Bad], reason: str) -> pa.Array:
    """Return decoded values with the reason of each bad one, as they are when `reason` is empty."""
    if not reason:
        return values
    why = {one.row: one.why for one in bad}
    reasons = pa.array([why.get(row) for row in range(len(values))] if why else [None] * len(values), pa.string())
    kind = with_reason(values.type, reason)
    missing = pc.and_(values.is_null(), reasons.is_null())
    return pa.StructArray.from_arrays([*values.flatten(), reasons], fields=list(kind), mask=missing)


def _spark_type(kind: pa.DataType) -> DataType:
    """Return the type as Spark's. Raises `Refused` where Spark has none."""
    from pyspark.errors import PySparkTypeError

    from ..source.spark_types import spark_type_of

    try:
        return spark_type_of(kind)
    except PySparkTypeError as error:
        raise Refused(f"Spark has no columns for a part of the schema: {error}") from None


def _subject(column: str | Column) -> str:
    topics = _topics.get()
    if not isinstance(column, str) or column not in _SIDES or len(topics) != 1:
        why = f"the stage reads {len(topics)} topics" if isinstance(column, str) and column in _SIDES else "any column"
        raise Usage(
            f"nothing says which subject to decode ({why})",
            hint='as decode("value", registry=…, subject="orders-value")',
        )
    return f"{topics[0]}-{column}"


def _sentence(bad: Bad, address: Sequence[pa.Array], count: int) -> str:
    """What is wrong with a message; `address` has topic, partition and offset, or nothing."""
    where = f"row {bad.row} of a batch of {count}"
    if address:
        topic, partition, offset = (part[bad.row].as_py() for part in address)
        where = f"topic {topic!r}, partition {partition}, offset {offset}"
    return f"the message at {where} cannot be decoded: {bad.why}"


@lru_cache(maxsize=64)
def open_reader(schema: Schema, message: str = "") -> Reader:
    """What reads messages into a schema's columns; of Protobuf, those of the type `message`, the first when empty.

    Raises `NotFound` where the schema has no such type, and `Refused` where no columns can be made of it.
    """
    if schema.kind == "PROTOBUF":
        return ProtobufReader(schema, message)
    if schema.kind not in ("AVRO", "JSON"):
        raise Refused(f"schemas of type {schema.kind} are not read", hint="AVRO, PROTOBUF and JSON are")
    return AvroReader(schema) if schema.kind == "AVRO" else JsonReader(schema)


@dataclass(frozen=True, slots=True)
class Bad:
    """A message that could not be read: where it is in the batch, and why."""

    row: int
    why: str


def read_batch(
    messages: pa.Array, reader: Reader, kind: str, schema_of: Callable[[int], Schema], *, every: bool = True
) -> tuple[pa.Array, tuple[Bad, ...]]:
    """All messages of a batch, null where a message is null or bad.

    Args:
        messages: Binary; as they came from Kafka.
        reader: Of the declared schema.
        kind: Its kind; messages of another one are bad.
        schema_of: Gives the schema that messages name by its id; raises `NotFound` where there is none.
        every: Whether all bad messages are looked for; else one is enough, and values are of no use when there is one.
    """
    messages = messages.cast(pa.binary())
    ids = schema_ids(messages)
    bad: list[Bad] = []
    values, rows = [pa.nulls(0, reader.type)], [np.empty(0, np.int64)]

    def refuse(at: npt.NDArray[np.int64], why: str) -> None:
        bad.extend(Bad(row, why) for row in at.tolist())

    def read(writer: Schema, number: int, at: npt.NDArray[np.int64], *, first: bool) -> None:
        """Read the messages of one schema at these rows. Halved until bad ones are alone: they are few."""
        if bad and not every:
            return
        some = messages if len(at) == len(messages) else messages.take(pa.array(at))
        try:
            values.append(reader.read(writer, some))
            rows.append(at)
        except BadMessage as error:
            likely = reader.likely(writer, some) if first else np.ones(len(at), bool)
            if not likely.all():
                # These can be told at a glance.
                refuse(at[~likely], f"schema id {number}: not of the {kind.capitalize()} schema that it names")
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
            there = at[np.asarray(messages.is_valid())[at]].tolist()
            bad += [Bad(row, _no_message(messages[row].as_py())) for row in there]
            continue
        try:
            # Whatever else the registry refuses is no message's fault.
            writer = schema_of(number)
        except NotFound as error:
            refuse(at, error.sentence)
            continue
        if writer.kind != kind:
            refuse(at, f"schema id {number} is of type {writer.kind}, not {kind}")
            continue
        known, done = len(bad), len(values)
        try:
            read(writer, number, at, first=True)
        except Refused as error:
            del bad[known:], values[done:], rows[done:]
            refuse(at, f"schema id {number}: {error.sentence}")
    where = np.full(len(messages), -1)
    read_rows = np.concatenate(rows)
    where[read_rows] = np.arange(len(read_rows))
    made = pa.concat_arrays(values)
    if not np.array_equal(where, np.arange(len(made))):
        made = made.take(pa.array(where, mask=where < 0))
    return made, tuple(sorted(bad, key=lambda one: one.row))


def _no_message(data: bytes) -> str:
    shown = data[:8].hex(" ")
    return f"no magic byte 0 and schema id before it (it begins with {shown})" if data else "it is empty"
