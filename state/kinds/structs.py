"""Conversion of structs between Arrow and the Python values that user code for Spark's operators sees.

The intermediate form of a struct is a tuple of Spark's internal values, which Spark's own types convert. There, a
timestamp is the number of microseconds since 1970 UTC, a date the number of days, and a nested struct a tuple.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import Refused

Fields: TypeAlias = tuple[Any, ...]
"""Spark's internal values of a struct's fields."""


class SparkStruct(Protocol):
    """Methods of Spark's `StructType` that the conversion calls."""

    def toInternal(self, obj: Any) -> Any:
        """Convert a user's value to Spark's internal value."""

    def fromInternal(self, obj: Any) -> Any:
        """Convert Spark's internal value to a row for user code."""

    def needConversion(self) -> bool:
        """Return True if the values that user code sees differ from Spark's internal values."""


StructOf: TypeAlias = Callable[[pa.StructType], SparkStruct]


class Structs:
    """Converter for the structs of one type."""

    def __init__(self, column: str, kind: pa.StructType, struct_of: StructOf) -> None:
        self._column, self._kind, self._spark = column, kind, struct_of(kind)
        self._inner = [_inner(field.type) for field in kind]
        self._nested = any(pa.types.is_nested(field.type) for field in kind)
        self._converted = self._nested or self._inner != [field.type for field in kind]
        self._python_types = tuple(map(_python_type, self._inner))

    def to_python(self, structs: pa.Array, times: pa.Array | None = None) -> list[Fields | None]:
        """Return each struct as a tuple of internal values, followed by its time if given; None for a null struct."""
        parts = [_read(column.cast(inner), inner) for column, inner in zip(structs.flatten(), self._inner, strict=True)]
        rows: list[Fields | None] = list(zip(*parts, *((times.to_pylist(),) if times is not None else ()), strict=True))
        for index in np.flatnonzero(np.asarray(structs.is_null())).tolist() if structs.null_count else ():
            rows[index] = None
        return rows

    def to_arrays(self, rows: Sequence[Fields | None], *, timed: bool = False) -> list[pa.Array]:
        """Convert tuples to a struct column; if `timed`, also return a column of their last elements."""
        present = [row for row in rows if row is not None]
        parts = list(zip(*present, strict=True)) or [()] * (self._kind.num_fields + timed)
        children = [self._array(*arguments) for arguments in zip(self._kind, self._inner, parts, strict=False)]
        arrays = [pa.StructArray.from_arrays(children, fields=list(self._kind))]
        arrays += [pa.array(parts[-1], pa.int64())] if timed else []
        if len(present) == len(rows):
            return arrays
        is_present = np.array([row is not None for row in rows], bool)
        positions = pa.array(np.cumsum(is_present) - 1, mask=~is_present)
        return [array.take(positions) for array in arrays]

    def from_user(self, value: Sequence[Any]) -> Fields:
        """Convert a user's value to internal values. Raises `Refused` if the value does not fit the struct."""
        if type(value) is tuple and tuple(map(type, value)) == self._python_types:
            return value  # nearly always
        names = ", ".join(field.name for field in self._kind)
        if not isinstance(value, tuple | list):
            problem = f"state variable {self._column!r}: got {type(value).__name__}"
            raise Refused(f"{problem}; expected a tuple of {names}")
        if len(value) != self._kind.num_fields:
            problem = f"state variable {self._column!r}: got {len(value)} values"
            raise Refused(f"{problem}; expected {self._kind.num_fields}: {names}")
        plain_fields = [
            float(plain_field) if type(plain_field := _plain(field)) is int and python is float else plain_field
            for field, python in zip(value, self._python_types, strict=True)
        ]
        try:
            return tuple(self._spark.toInternal(tuple(plain_fields)))
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"state variable {self._column!r}: a value does not fit: {error}") from error

    def to_user(self, value: Fields) -> Fields:
        return tuple(self.to_named_row(value)) if self._converted else value

    def to_named_row(self, value: Fields) -> Any:
        """Convert internal values to a row with named fields. The caller may change the row."""
        return self._spark.fromInternal(deepcopy(value) if self._nested else value)

    def _array(self, field: pa.Field, inner: pa.DataType, values: Sequence[Any]) -> pa.Array:
        try:
            written = [_written(value, inner) for value in values] if pa.types.is_nested(inner) else values
            return pa.array(written, inner).cast(field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(
                f"state variable {self._column!r}: a value of field {field.name!r} does not fit {field.type}: {error}"
            ) from error


def _inner(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_date32(kind):
        return pa.int32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_inner(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_inner(kind.key_type), _inner(kind.item_type))
    return pa.list_(_inner(kind.value_type)) if types.is_list(kind) else kind


def _read(array: pa.Array, kind: pa.DataType) -> list[Any]:
    if not pa.types.is_nested(kind):
        return array.to_pylist()  # type: ignore[no-any-return]
    return [_tuples(value, kind) for value in array.to_pylist(maps_as_pydicts="lossy")]


def _tuples(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return tuple(_tuples(value[field.name], field.type) for field in kind)
    if pa.types.is_map(kind):
        return {name: _tuples(item, kind.item_type) for name, item in value.items()}
    return [_tuples(item, kind.value_type) for item in value]


def _written(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _written(part, field.type) for field, part in zip(kind, value, strict=True)}
    if pa.types.is_map(kind):
        return [(name, _written(item, kind.item_type)) for name, item in value.items()]
    return [_written(item, kind.value_type) for item in value]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    convert = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
    return convert() if convert is not None else value


def _python_type(kind: pa.DataType) -> type | None:
    types = pa.types
    checks = {bool: types.is_boolean, int: types.is_integer, float: types.is_floating, str: types.is_string}
    return next((python for python, has_type in checks.items() if has_type(kind)), None)
