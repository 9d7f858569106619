"""Formats whose columns depend on the data: JSON, messages of a schema registry, and a user's decoder function."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ...common.extras import require_extras
from ...errors import NotFound, Refused
from ...pipeline.messages.json_messages import parse_json
from ...pipeline.messages.registry import NO_SCHEMA, BadMessage, Reader, Registry, Schema, schema_ids
from .formats import BadValue, Format, NewFields, is_empty

_MAX_FIELDS = 500
_CHANGED = re.compile(r"it does not match the columns: .*Column\(/v/?(.*)\) changed from (\w+) to (\w+).*", re.DOTALL)
"""Pattern of Arrow's message about a JSON value whose type differs from the column's."""
_ROW = re.compile(r"in row (\d+)$")


def merge_types(stored: pa.DataType | None, current: pa.DataType) -> pa.DataType:
    """Return the stored type with the fields that only `current` has. Fields without any value so far are left out."""
    if stored is None or pa.types.is_null(stored):
        return _without_nulls(current)
    if pa.types.is_struct(stored) and pa.types.is_struct(current):
        fields = {known.name: known.type for known in stored}
        for new in current:
            merged = merge_types(fields.get(new.name), new.type)
            if not is_empty(merged):
                fields[new.name] = merged
        return pa.struct(list(fields.items()))
    if pa.types.is_list(stored) and pa.types.is_list(current):
        return pa.list_(merge_types(stored.value_type, current.value_type))
    return stored


def _first_type(stored: pa.StructType | None, declared: Mapping[str, pa.DataType]) -> pa.StructType | None:
    """Return the columns that are known without any value: stored and declared columns."""
    fields = {known.name: known.type for known in stored or ()} | dict(declared)
    return pa.struct(list(fields.items())) if fields else None


def _single(columns: pa.StructType | None, *, is_object: bool) -> pa.DataType | None:
    """Return the type of the values. If values are not objects, it is the type of the only column."""
    return columns if columns is None or is_object else columns[0].type


def _is_object(samples: pa.BinaryArray) -> bool:
    return bool(samples[0].as_py().lstrip().startswith(b"{"))


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    # A text that looks like a time stays a text: the next one may not.
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields = ((inner.name, _without_nulls(inner.type)) for inner in kind)
        return pa.struct([(name, inner) for name, inner in fields if not is_empty(inner)])
    if pa.types.is_list(kind):
        inside = _without_nulls(kind.value_type)
        return pa.null() if is_empty(inside) else pa.list_(inside)
    return kind


def conform(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values converted to `kind`, which has all their fields, and possibly fields without values."""
    if values.type == kind:
        return values
    if is_empty(kind):
        return pa.nulls(len(values), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        columns = dict(zip((inner.name for inner in values.type), values.flatten(), strict=True))
        inside = [
            conform(columns[inner.name], inner.type) if inner.name in columns else pa.nulls(len(values), inner.type)
            for inner in kind
        ]
        return pa.StructArray.from_arrays(inside, fields=list(kind), mask=values.is_null())
    return values.cast(kind)


@dataclass(slots=True)
class Json(Format):
    """Format of JSON values. Fields of objects become columns. Undeclared types are inferred from samples."""

    declared: Mapping[str, pa.DataType] = field(default_factory=dict)
    type: pa.DataType = field(default_factory=pa.null)

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:
        start = _single(_first_type(stored, self.declared), is_object=not len(samples) or _is_object(samples))
        found = self._parse(samples, start).type if len(samples) else pa.null()
        self.type = merge_types(start, found)

    def decode(self, data: pa.BinaryArray) -> pa.Array:
        if not len(data):
            return pa.array([], self.type)
        values = self._parse(data, None if is_empty(self.type) else self.type)
        if (merged := merge_types(self.type, values.type)) != self.type:
            self.type = merged
            raise NewFields
        return conform(values, self.type)

    def _parse(self, data: pa.BinaryArray, kind: pa.DataType | None) -> pa.Array:
        try:
            values = parse_json(data, kind, grows=True)
        except BadMessage as error:
            row, why = self._first_bad(data, kind, error.message)
            raise BadValue(row, _CHANGED.sub(r"field \1 is a \3; its column has the type of a \2", why)) from None
        if pa.types.is_struct(values.type) and values.type.num_fields > _MAX_FIELDS:
            raise BadValue(0, f"the objects have over {_MAX_FIELDS} fields, which cannot all be columns")
        return values

    def _first_bad(self, data: pa.BinaryArray, kind: pa.DataType | None, why: str) -> tuple[int, str]:
        if (numbered := _ROW.search(why)) is not None:
            return int(numbered[1]), why
        for row in range(len(data)):
            try:
                parse_json(data.slice(row, 1), kind, grows=True)
            except BadMessage as error:
                return row, error.message
        return 0, why


@dataclass(slots=True)
class Registered(Format):
    """Format of messages in Confluent's wire format, read with the subject's newest schema."""

    registry: Registry
    subject: str
    type: pa.DataType = field(default_factory=pa.null)
    _schema: Schema | None = None
    _reader: Reader | None = None
    _tried: set[int] = field(default_factory=set)

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:
        require_extras("registry", "messages of a schema registry")
        self._use(self._newest(samples))
        self.type = merge_types(_single(stored, is_object=pa.types.is_struct(self.type)), self.type)

    def decode(self, data: pa.BinaryArray) -> pa.Array:
        from ...pipeline.messages.decode import read_batch

        assert self._reader is not None and self._schema is not None  # noqa: S101, PT018  `learn` was called
        if not len(data):
            return pa.array([], self.type)
        self._check_newer(data)
        values, bad = read_batch(data, self._reader, self._schema.kind, self.registry.by_id, find_all=False)
        if bad:
            raise BadValue(bad[0].row, bad[0].why)
        try:
            return conform(values, self.type)
        except pa.ArrowInvalid as error:
            raise BadValue(0, f"its schema has other types than the stored columns: {error}") from error

    def _check_newer(self, data: pa.BinaryArray) -> None:
        """Switch to a later schema as soon as a message has one. Raises `NewFields` if the schema has new fields."""
        if new := {int(number) for number in schema_ids(data)} - self._tried - {NO_SCHEMA}:
            self._tried |= new
            Registry.latest.cache_clear()
            current = self._newest(data)
            if current != self._schema:
                before = self.type
                self._use(current)
                self.type = merge_types(before, self.type)
                if self.type != before:
                    raise NewFields

    def _newest(self, samples: pa.BinaryArray) -> Schema:
        try:
            return self.registry.latest(self.subject, None)
        except NotFound:
            ids = [int(number) for number in schema_ids(samples) if number != NO_SCHEMA]
            if not ids:
                raise
            # Under another naming strategy, the subject has another name.
            return self.registry.by_id(max(ids))

    def _use(self, schema: Schema) -> None:
        from ...pipeline.messages.decode import open_reader

        self._schema, self._reader = schema, open_reader(schema)
        self.type = self._reader.type


@dataclass(slots=True)
class Decoded(Format):
    """Format of a user's decoder function, which returns a dict (its items become columns) or a single value."""

    code: str
    function: Callable[[bytes], Any]
    declared: Mapping[str, pa.DataType] = field(default_factory=dict)
    type: pa.DataType = field(default_factory=pa.null)

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:
        values = self._call(samples)
        is_object = not values or isinstance(values[0], dict)
        start = _single(_first_type(stored, self.declared), is_object=is_object)
        self.type = merge_types(start, _infer(values) if values else pa.null())

    def decode(self, data: pa.BinaryArray) -> pa.Array:
        values = self._call(data)
        # Arrow leaves out fields that the type lacks. It infers no type for some values of a declared type.
        if any(_has_more(value, self.type) for value in values):
            merged = merge_types(self.type, _infer(values))
            if merged != self.type:
                self.type = merged
                raise NewFields
        try:
            return pa.array(values, self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self.type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise BadValue(row, f"{self.code} returned a value that is no {self.type} ({error})") from None
            raise

    def _call(self, data: pa.BinaryArray) -> list[Any]:
        values = []
        for row, value in enumerate(data.to_pylist()):
            try:
                values.append(self.function(value))
            except Exception as error:
                raise BadValue(row, f"{self.code} raised {type(error).__name__}: {error}") from error
        return values


def _has_more(value: Any, kind: pa.DataType) -> bool:
    """Return True if a value has a field, at any depth, that its type lacks."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        types = {inner.name: inner.type for inner in kind}
        return any(_has_more(inner, types.get(name, pa.null())) for name, inner in value.items())
    if isinstance(value, list | tuple) and pa.types.is_list(kind):
        return any(_has_more(inner, kind.value_type) for inner in value)
    return pa.types.is_null(kind) and value is not None


def _infer(values: list[Any]) -> pa.DataType:
    try:
        return pa.array(values).type
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise Refused(
            f"the decoder returned values that have no common type: {error}",
            hint="return a dict with the same type for each name, or name the types: --columns 'amount double'",
        ) from error
