"""Decoding of schema-registry messages to structs: the Spark column `decode`, and the decoder of stored messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...common.arguments import check_arguments
from ...common.extras import require_extras
from ...common.install import install_hint
from ...errors import BadRecord, NotFound, Refused, SlackwaterError, Usage
from .avro import AvroReader
from .json_messages import JsonReader
from .protobuf import ProtobufReader
from .registry import NO_SCHEMA, BadMessage, Reader, Registry, Schema, schema_ids

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from .registry import Registry


Rows = npt.NDArray[np.int64]

_SIDES = ("key", "value")
_MODES = ("FAILFAST", "PERMISSIVE")
_LOCATION_COLUMNS = ("topic", "partition", "offset")
_NO_HEADER = "it has no schema registry header (magic byte 0 and schema id)"

_topics: ContextVar[tuple[str, ...]] = ContextVar("topics", default=())


@contextmanager
def default_topics(topics: Sequence[str]) -> Iterator[None]:
    token = _topics.set(tuple(topics))
    try:
        yield
    finally:
        _topics.reset(token)


@check_arguments
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
        mode: `FAILFAST` stops the stage at a message that cannot be decoded, and nothing is lost. `PERMISSIVE` decodes
            the message to null. Case-insensitive, as in Spark.
        reason: `PERMISSIVE` only: name of an additional string field. It has the error of a message that cannot be
            decoded; the other fields are then null. Empty for no such field.
        patience_s: Maximum time, in seconds, that a registry may be unavailable before the stage stops.

    Returns:
        A struct column; null for a null message.

    Raises:
        NotFound: The registry has no such subject or version, or the schema has no such message type.
        Refused: A required package is missing, Spark is older than 4.1, the schema has no columns, or the registry
            denies access.
        Unavailable: The registry has not answered for `patience_s`.
        Usage: An argument is invalid.
    """
    require_extras("spark,registry", "decode")
    from pyspark.sql import functions as F

    from ..source.worker import ERROR_TAG

    if not hasattr(F, "arrow_udf"):
        raise Refused("decode needs Arrow functions, which Spark has since 4.1", hint="use a later Spark")
    fails = _checked_mode(mode, reason) == "FAILFAST"
    client = Registry.at_url(registry, patience_s)
    subject = subject or _default_subject(column)
    schema = client.latest(subject, version)
    kind = _spark_type(add_reason_field(open_reader(schema, message).type, reason))
    addressed = isinstance(column, str) and column in _SIDES
    parts = [F.col(column) if isinstance(column, str) else column, *map(F.col, _LOCATION_COLUMNS if addressed else ())]
    # `decoded` is pickled together with its variables. Workers open the reader themselves.
    error_mark = ERROR_TAG

    def decoded(messages: pa.Array, *address: pa.Array) -> pa.Array:
        with error_mark.tagging():
            reader = open_reader(schema, message)
            values, bad = read_batch(messages, reader, schema.kind, client.by_id, find_all=not fails)
            if bad and fails:
                raise BadRecord(_error_message(bad[0], address, len(messages)))
            return add_reasons(values, bad, reason)

    format_json = encode_arguments(registry, subject, version, message)
    decoded.__name__ = f"decode_{xxhash.xxh64_hexdigest(format_json.encode())}"
    _formats_by_function[decoded.__name__] = format_json
    struct: Column = F.arrow_udf(decoded, kind)(*parts)
    return struct


def encode_arguments(registry: str, subject: str, version: int | None, message: str) -> str:
    """Return the arguments of `decode` as JSON, the value of `FieldSource.format` for a decoded field."""
    arguments = {"registry": registry, "subject": subject, "version": version, "message": message}
    return json.dumps({name: value for name, value in arguments.items() if value})


_formats_by_function: dict[str, str] = {}


def format_of(function: str) -> str:
    return _formats_by_function.get(function, "")


def _checked_mode(mode: str, reason: str) -> str:
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise Usage(f"mode={mode!r} of decode is neither {' nor '.join(_MODES)}")
    if reason and mode.upper() != "PERMISSIVE":
        raise Usage(f"reason={reason!r} of decode needs mode='PERMISSIVE': with {mode} a bad message stops the stage")
    return mode.upper()


def add_reason_field(kind: pa.DataType, reason: str) -> pa.DataType:
    if not reason:
        return kind
    if not pa.types.is_struct(kind):
        raise Usage(f"reason={reason!r} of decode needs a schema that is a record, not {kind}")
    if reason.lower() in (field.name.lower() for field in kind):
        raise Usage(f"reason={reason!r} of decode is already a field of the schema", hint="choose another name")
    return pa.struct([*kind, pa.field(reason, pa.string())])


def add_reasons(values: pa.Array, bad: Sequence[BadRow], reason: str) -> pa.Array:
    """Add a string field with the errors of bad messages to decoded values.

    If its name `reason` is empty, do nothing.
    """
    if not reason:
        return values
    reasons_by_row = {bad_message.row: bad_message.why for bad_message in bad}
    reasons = pa.array(
        [reasons_by_row.get(row) for row in range(len(values))] if reasons_by_row else [None] * len(values), pa.string()
    )
    kind = add_reason_field(values.type, reason)
    missing = pc.and_(values.is_null(), reasons.is_null())
    return pa.StructArray.from_arrays([*values.flatten(), reasons], fields=list(kind), mask=missing)


def _spark_type(kind: pa.DataType) -> DataType:
    from pyspark.errors import PySparkTypeError

    from ..source.spark_types import spark_type_of

    try:
        return spark_type_of(kind)
    except PySparkTypeError as error:
        raise Refused(f"Spark has no type for a part of the schema: {error}") from None


def _default_subject(column: str | Column) -> str:
    topics = _topics.get()
    is_side = isinstance(column, str) and column in _SIDES
    if not is_side or len(topics) != 1:
        why = f"the stage reads {len(topics)} topics" if is_side else "the column is not a topic's value or key"
        raise Usage(
            f"missing subject= of decode ({why})",
            hint='for example decode("value", registry=…, subject="orders-value")',
        )
    return f"{topics[0]}-{column}"


def _error_message(bad: BadRow, address: Sequence[pa.Array], count: int) -> str:
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
class BadRow:
    """Message that cannot be decoded: its row number in the batch, and the reason."""

    row: int
    why: str


def read_batch(
    messages: pa.Array, reader: Reader, kind: str, schema_of: Callable[[int], Schema], *, find_all: bool = True
) -> tuple[pa.Array, tuple[BadRow, ...]]:
    """Decode all messages of a batch. Return the values (null for null and bad messages), and the bad messages.

    Args:
        messages: Binary array of the messages as they came from Kafka.
        reader: Reader of the declared schema.
        kind: The declared schema's kind; messages of another kind are bad.
        schema_of: Returns the schema with an id; raises `NotFound` if there is none.
        find_all: True to find all bad messages; False to stop at the first, in which case the values are unusable.
    """
    batch = _BatchDecoder(messages.cast(pa.binary()), reader, kind, schema_of, find_all)
    batch.read()
    return batch.values_in_order(), tuple(sorted(batch.bad, key=lambda bad_message: bad_message.row))


@dataclass(slots=True)
class _BatchDecoder:
    messages: pa.BinaryArray
    reader: Reader
    kind: str
    schema_of: Callable[[int], Schema]
    find_all: bool
    bad: list[BadRow] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)

    def read(self) -> None:
        ids = schema_ids(self.messages)
        for number in np.unique(ids).tolist():
            if self._should_stop:
                return
            at = np.flatnonzero(ids == number)
            if number == NO_SCHEMA:
                bad_rows = at[np.asarray(self.messages.is_valid())[at]].tolist()
                self.bad += [BadRow(row, _missing_header_reason(self.messages[row].as_py())) for row in bad_rows]
            else:
                self._read_schema(number, at)

    def values_in_order(self) -> pa.Array:
        positions = np.full(len(self.messages), -1)
        read_rows = np.concatenate([np.empty(0, np.int64), *self.rows])
        positions[read_rows] = np.arange(len(read_rows))
        values = pa.concat_arrays([pa.nulls(0, self.reader.type), *self.values])
        if np.array_equal(positions, np.arange(len(values))):
            return values
        return values.take(pa.array(positions, mask=positions < 0))

    @property
    def _should_stop(self) -> bool:
        return bool(self.bad) and not self.find_all

    def _add_bad(self, at: Rows, why: str) -> None:
        self.bad += [BadRow(row, why) for row in at.tolist()]

    def _read_schema(self, number: int, at: Rows) -> None:
        try:
            # Only an unknown id is caused by the message; any other error of the registry stops the stage.
            writer = self.schema_of(number)
        except NotFound as error:
            self._add_bad(at, error.sentence)
            return
        if writer.kind != self.kind:
            self._add_bad(at, f"schema id {number} is of type {writer.kind}, not {self.kind}")
            return
        num_bad, num_read = len(self.bad), len(self.values)
        try:
            self._read_rows(writer, number, at, first=True)
        except Refused as error:
            del self.bad[num_bad:], self.values[num_read:], self.rows[num_read:]
            self._add_bad(at, f"schema id {number}: {error.sentence}")

    def _read_rows(self, writer: Schema, number: int, at: Rows, *, first: bool) -> None:
        """Decode the messages of one schema in the rows `at`. Halves the rows repeatedly to isolate bad messages."""
        if self._should_stop:
            return
        subset = self.messages if len(at) == len(self.messages) else self.messages.take(pa.array(at))
        try:
            self.values.append(self.reader.read(writer, subset))
            self.rows.append(at)
        except BadMessage as error:
            likely = self.reader.may_be_valid(writer, subset) if first else np.ones(len(at), bool)
            if not likely.all():
                # The quick check found these, so the rest need no halving.
                self._add_bad(
                    at[~likely], f"schema id {number}: the bytes do not match the {self.kind.capitalize()} schema"
                )
                if likely.any():
                    self._read_rows(writer, number, at[likely], first=False)
            elif len(at) == 1:
                self._add_bad(at, f"schema id {number}: {error.sentence}")
            else:
                for half in np.split(at, [len(at) // 2]):
                    self._read_rows(writer, number, half, first=False)


def _missing_header_reason(data: bytes) -> str:
    shown = data[:8].hex(" ")
    return f"{_NO_HEADER}: it begins with {shown}" if data else "it is empty"


@dataclass(frozen=True, slots=True)
class RegistryDecoder:
    """Decodes stored messages by the schemas of a registry; implements `MessageDecoder`."""

    patience_s: float = 10.0

    def decoded(self, how: str, messages: pa.Array, /) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        """Return decoded values in parts, each with its row numbers, and error messages by row number.

        `how` is the JSON of `decode`'s arguments. If it has no subject, each message is decoded by the schema with the
        id in its header.
        """
        try:
            arguments = json.loads(how)
            client = Registry.at_url(arguments["registry"], self.patience_s)
            if subject := arguments.get("subject", ""):
                schema = client.latest(subject, arguments.get("version"))
                reader = open_reader(schema, arguments.get("message", ""))
                values, bad = read_batch(messages, reader, schema.kind, client.by_id)
                return [(values, np.arange(len(messages)))], _reasons(bad)
            return self._decode_by_message_schema(client, messages)
        except ImportError as error:
            raise Refused(f"messages cannot be decoded here: {error}", hint=install_hint("registry")) from None
        except (ValueError, KeyError, TypeError):
            raise Refused(f"unknown message format {how!r}") from None

    def _decode_by_message_schema(
        self, client: Registry, messages: pa.Array
    ) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        ids = schema_ids(messages.cast(pa.binary()))
        parts, reasons = list[tuple[pa.Array, Rows]](), dict[int, str]()
        for number in np.unique(ids).tolist():
            at = np.flatnonzero(ids == number)
            try:
                if number == NO_SCHEMA:
                    raise Refused(_NO_HEADER)
                schema = client.by_id(number)
                values, bad = read_batch(messages.take(pa.array(at)), open_reader(schema), schema.kind, client.by_id)
            except SlackwaterError as error:
                reasons |= dict.fromkeys(at.tolist(), f"schema id {number}: {error.sentence}")
            else:
                parts.append((values, at))
                reasons |= {int(at[row]): why for row, why in _reasons(bad).items()}
        return parts, reasons


def _reasons(bad: tuple[BadRow, ...]) -> dict[int, str]:
    return {bad_message.row: bad_message.why for bad_message in bad}
