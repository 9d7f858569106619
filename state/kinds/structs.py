"""Structs as code for Spark's stateful operators has them in Python, and in Arrow.

Between the two they are tuples of Spark's inner values, to which and from which Spark's own types convert: a timestamp
is a number of microseconds since 1970 UTC, a date one of days, a struct within another one a tuple.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import Refused

Fields: TypeAlias = tuple[Any, ...]
"""The values of a struct's fields."""


class SparkStruct(Protocol):
    """Spark's type of a struct."""

    def toInternal(self, obj: Any) -> Any:
        """Spark's inner values of what a user gives."""

    def fromInternal(self, obj: Any) -> Any:
        """A row for the user."""

    def needConversion(self) -> bool:
        """Whether the two differ, were the struct within another one."""


StructOf: TypeAlias = Callable[[pa.StructType], SparkStruct]


class Structs:
    """Structs of one type."""

    def __init__(self, column: str, kind: pa.StructType, struct_of: StructOf) -> None:
        self._column, self._kind, self._spark = column, kind, struct_of(kind)
        self._inner = [_inner(each.type) for each in kind]
        self._nested = any(pa.types.is_nested(each.type) for each in kind)
        self._converted = self._nested or self._inner != [each.type for each in kind]
        self._python_types = tuple(map(_python_type, self._inner))

    def python(self, structs: pa.Array, times: pa.Array | None = None) -> list[Fields | None]:
        """Tuples of inner values, and at the end what `times` has; None for a null."""
        parts = [_read(each.cast(inner), inner) for each, inner in zip(structs.flatten(), self._inner, strict=True)]
        rows: list[Fields | None] = list(zip(*parts, *((times.to_pylist(),) if times is not None else ()), strict=True))
        for at in np.flatnonzero(np.asarray(structs.is_null())).tolist() if structs.null_count else ():
            rows[at] = None
        return rows

    def arrays(self, rows: Sequence[Fields | None], *, timed: bool = False) -> list[pa.Array]:
        """The structs of such tuples, and where they are `timed`, what these have at the end."""
        there = [row for row in rows if row is not None]
        parts = list(zip(*there, strict=True)) or [()] * (self._kind.num_fields + timed)
        made = [self._array(*each) for each in zip(self._kind, self._inner, parts, strict=False)]
        every = [pa.StructArray.from_arrays(made, fields=list(self._kind))]
        every += [pa.array(parts[-1], pa.int64())] if timed else []
        if len(there) == len(rows):
            return every
        is_there = np.array([row is not None for row in rows], bool)
        place = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        return [each.take(place) for each in every]

    def taken(self, value: Sequence[Any]) -> Fields:
        """The inner values of what a user gives. Raises `Refused` where that is something else than such a struct."""
        if type(value) is tuple and tuple(map(type, value)) == self._python_types:
            return value  # nearly always
        names = ", ".join(each.name for each in self._kind)
        if not isinstance(value, tuple | list):
            what = f"state variable {self._column!r}: {type(value).__name__} was given"
            raise Refused(f"{what}; expected a tuple of {names}")
        if len(value) != self._kind.num_fields:
            what = f"state variable {self._column!r}: {len(value)} values were given"
            raise Refused(f"{what}; expected {self._kind.num_fields}: {names}")
        plain = [
            float(each) if type(each := _plain(one)) is int and python is float else each
            for one, python in zip(value, self._python_types, strict=True)
        ]
        try:
            return tuple(self._spark.toInternal(tuple(plain)))
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"state variable {self._column!r}: a value does not fit: {error}") from error

    def given(self, value: Fields) -> Fields:
        """What the user gets of inner values, and may change."""
        return tuple(self.named(value)) if self._converted else value

    def named(self, value: Fields) -> Any:
        """The same as a row that knows its fields."""
        return self._spark.fromInternal(deepcopy(value) if self._nested else value)

    def _array(self, field: pa.Field, inner: pa.DataType, values: Sequence[Any]) -> pa.Array:
        try:
            written = [_written(each, inner) for each in values] if pa.types.is_nested(inner) else values
            return pa.array(written, inner).cast(field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(
                f"state variable {self._column!r}: a value of field {field.name!r} is no {field.type}: {error}"
            ) from error


def _inner(kind: pa.DataType) -> pa.DataType:
    """The type of Spark's inner values."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_date32(kind):
        return pa.int32()
    if types.is_struct(kind):
        return pa.struct([each.with_type(_inner(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_inner(kind.key_type), _inner(kind.item_type))
    return pa.list_(_inner(kind.value_type)) if types.is_list(kind) else kind


def _read(array: pa.Array, kind: pa.DataType) -> list[Any]:
    if not pa.types.is_nested(kind):
        return array.to_pylist()  # type: ignore[no-any-return]
    return [_tuples(each, kind) for each in array.to_pylist(maps_as_pydicts="lossy")]


def _tuples(value: Any, kind: pa.DataType) -> Any:
    """A nested value of Arrow's, in which structs are tuples."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return tuple(_tuples(value[each.name], each.type) for each in kind)
    if pa.types.is_map(kind):
        return {name: _tuples(each, kind.item_type) for name, each in value.items()}
    return [_tuples(each, kind.value_type) for each in value]


def _written(value: Any, kind: pa.DataType) -> Any:
    """A nested value as Arrow takes it."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {each.name: _written(part, each.type) for each, part in zip(kind, value, strict=True)}
    if pa.types.is_map(kind):
        return [(name, _written(each, kind.item_type)) for name, each in value.items()]
    return [_written(each, kind.value_type) for each in value]


def _plain(value: Any) -> Any:
    """A value of numpy's or pandas' as Python's, as Spark takes them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    convert = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
    return convert() if convert is not None else value


def _python_type(kind: pa.DataType) -> type | None:
    """The type of Python's that such values have, where one says all."""
    types = pa.types
    checks = {bool: types.is_boolean, int: types.is_integer, float: types.is_floating, str: types.is_string}
    return next((python for python, is_one in checks.items() if is_one(kind)), None)
