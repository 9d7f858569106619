"""State variables of a user's class: columns of the table, whose values the class reads and writes key by key.

The method names are those of Spark's `ValueState`, `ListState` and `MapState`, and of the timers of Spark's handle. At
the first call, the values of all keys of a batch are converted from Arrow; after the batch, they are converted back.
Methods act on the current key (`BatchKeys.current`). Expired values are dropped before user code sees them.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from .structs import Fields, StructOf, Structs

Form: TypeAlias = Literal["value", "list", "map"]
Times = npt.NDArray[np.int64]
TIMERS = "timers"
"""Column with a key's timers in ms since 1970 UTC, ascending."""
NEVER = (1 << 63) - 1


class Variable(Struct, frozen=True, omit_defaults=True):
    """State variable, as manifests store it."""

    form: Form
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class StateColumn:
    """State variable, as a column of the table."""

    name: str
    variable: Variable
    fields: pa.StructType
    key: pa.StructType | None = None

    @property
    def columns(self) -> list[pa.Field]:
        """Columns of the variable: its values, and with a time to live its expiry times in ms since 1970 UTC."""
        kind, times = self.fields, pa.int64()
        if self.variable.form != "value":
            kind, times = pa.map_(self.key, kind) if self.key is not None else pa.list_(kind), pa.list_(times)
        return [
            pa.field(self.name, kind),
            *([pa.field(expiry_column(self.name), times)] if self.variable.ttl_ms else []),
        ]

    def create_variable(self, keys: "BatchKeys", old: pa.Table, struct_of: StructOf) -> "StateVariable":
        return {"value": ValueState, "list": ListState, "map": MapState}[self.variable.form](self, keys, old, struct_of)


def expiry_column(name: str) -> str:
    """Return the name of the column with a variable's expiry times; for lists and maps, it is a list column."""
    return f"_expires_{name}"


@dataclass(slots=True)
class BatchKeys:
    """Keys of a batch. User code runs for one key at a time, the `current` one."""

    num: int
    wall_ms: int
    """Wall clock of the batch, in ms since 1970 UTC: values with this expiry time or an earlier one are expired."""
    current: int = 0
    changed: npt.NDArray[np.bool_] = field(init=False)
    """bool[num], True for keys whose values differ from the stored values."""

    def __post_init__(self) -> None:
        self.changed = np.zeros(self.num, bool)


class _PerKey:
    """A value for each key of a batch, converted from Arrow to Python at the first access."""

    def __init__(self, keys: BatchKeys, stored: pa.Array) -> None:
        self._keys, self._stored, self._rows = keys, stored, None
        self._written = False

    _rows: list[Any] | None

    @property
    def _all(self) -> list[Any]:
        if self._rows is None:
            self._rows = self._python(self._stored)
        return self._rows

    @property
    def _row(self) -> Any:
        return self._all[self._keys.current]

    def _put(self, row: Any) -> None:
        self._all[self._keys.current] = row
        self._written = self._keys.changed[self._keys.current] = True

    def _python(self, stored: pa.Array) -> list[Any]:
        raise NotImplementedError


class Timers(_PerKey):
    """Timers of each key of a batch."""

    def __init__(self, keys: BatchKeys, old: pa.Table) -> None:
        super().__init__(keys, old[TIMERS].combine_chunks())

    def registerTimer(self, expiryTimestampMs: int) -> None:
        if (at_ms := int(expiryTimestampMs)) not in (timers := self._row or []):
            insort(timers, at_ms)
            self._put(timers)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        if (at_ms := int(expiryTimestampMs)) in (timers := self._row or []):
            timers.remove(at_ms)
            self._put(timers or None)

    def listTimers(self) -> Iterator[int]:
        return iter(list(self._row or ()))

    def expired(self, until_ms: int) -> list[tuple[int, int]]:
        if not self._written and not (earliest_times(self._stored) <= until_ms).any():
            return []
        return sorted(
            (at_ms, key) for key, timers in enumerate(self._all) for at_ms in timers or () if at_ms <= until_ms
        )

    @property
    def array(self) -> pa.Array:
        return pa.array(self._rows, self._stored.type) if self._written else self._stored

    def _python(self, stored: pa.Array) -> list[Any]:
        return stored.to_pylist()  # type: ignore[no-any-return]


class StateVariable(_PerKey):
    """Values of one state variable. With a time to live, the last element of an entry is its expiry time."""

    def __init__(self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf) -> None:
        stored, *times = (old[field.name].combine_chunks() for field in column.columns)
        super().__init__(keys, stored)
        self._fields, self._times = Structs(column.name, column.fields, struct_of), times[0] if times else None
        self._until = (keys.wall_ms + column.variable.ttl_ms,) if times else ()
        if self._times is not None and (expired := earliest_times(self._times) <= keys.wall_ms).any():
            for key in np.flatnonzero(expired).tolist():
                self._all[key] = self._alive(self._all[key])
            self._written, keys.changed = True, keys.changed | expired

    def exists(self) -> bool:
        return self._row is not None

    def clear(self) -> None:
        if self._row is not None:
            self._put(None)

    @property
    def arrays(self) -> list[pa.Array]:
        if self._written:
            return self._arrays(self._all)
        return [self._stored, *([self._times] if self._times is not None else [])]

    def _taken(self, value: Sequence[Any]) -> Fields:
        return self._fields.from_user(value) + self._until

    def _given(self, entry: Fields) -> Fields:
        return self._fields.to_user(entry[:-1] if self._until else entry)

    def _is_alive(self, entry: Fields) -> bool:
        # Entries written before the variable had a time to live have no expiry time.
        return entry[-1] is None or entry[-1] > self._keys.wall_ms

    def _alive(self, row: Any) -> Any:
        raise NotImplementedError

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        raise NotImplementedError


class ValueState(StateVariable):
    """State variable with one value for each key."""

    def get(self) -> Fields | None:
        return self._given(self._row) if self._row is not None else None

    def update(self, newValue: Sequence[Any]) -> None:
        self._put(self._taken(newValue))

    def _alive(self, row: Any) -> Any:
        return row if row is not None and self._is_alive(row) else None

    def _python(self, stored: pa.Array) -> list[Any]:
        return self._fields.to_python(stored, self._times)

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        return self._fields.to_arrays(rows, timed=self._times is not None)


class ListState(StateVariable):
    """State variable with a list of values for each key."""

    def get(self) -> Iterator[Fields]:
        return iter([self._given(entry) for entry in self._row or ()])

    def put(self, newState: Iterable[Sequence[Any]]) -> None:
        self._put(list(map(self._taken, newState)) or None)

    def appendValue(self, newState: Sequence[Any]) -> None:
        self.appendList([newState])

    def appendList(self, newState: Iterable[Sequence[Any]]) -> None:
        entries = self._row or []
        entries += list(map(self._taken, newState))
        self._put(entries or None)

    def _alive(self, row: Any) -> Any:
        return list(filter(self._is_alive, row or ())) or None

    def _python(self, stored: pa.Array) -> list[Any]:
        times = _beside(self._times, stored) if self._times is not None else None
        return _per_key(stored, self._fields.to_python(stored.values, times))

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        arrays = self._fields.to_arrays([entry for row in rows for entry in row or ()], timed=self._times is not None)
        return [pa.ListArray.from_arrays(_offsets(rows), array, mask=_nulls(rows)) for array in arrays]


class MapState(StateVariable):
    """State variable with a map for each key. Iteration is in the order of the map's keys."""

    def __init__(self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf) -> None:
        assert column.key is not None  # noqa: S101  a map has one
        self._user_keys = Structs(column.name, column.key, struct_of)
        super().__init__(column, keys, old, struct_of)

    def getValue(self, key: Sequence[Any]) -> Any:
        entry = (self._row or {}).get(self._user_keys.from_user(key))
        return self._fields.to_named_row(self._given(entry)) if entry is not None else None

    def containsKey(self, key: Sequence[Any]) -> bool:
        return self._user_keys.from_user(key) in (self._row or {})

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:
        entries = self._row or {}
        entries[self._user_keys.from_user(key)] = self._taken(value)
        self._put(entries)

    def removeKey(self, key: Sequence[Any]) -> None:
        entries = self._row or {}
        if entries.pop(self._user_keys.from_user(key), None) is not None:
            self._put(entries or None)

    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        return iter([(key, self._given(self._row[key])) for key in self.keys()])

    def keys(self) -> Iterator[Fields]:
        return iter(_ordered(self._row or ()))

    def values(self) -> Iterator[Fields]:
        return iter([value for _, value in self.iterator()])

    def _alive(self, row: Any) -> Any:
        return {key: entry for key, entry in (row or {}).items() if self._is_alive(entry)} or None

    def _python(self, stored: pa.Array) -> list[Any]:
        times = _beside(self._times, stored) if self._times is not None else None
        keys, entries = self._user_keys.to_python(stored.keys), self._fields.to_python(stored.items, times)
        return [pairs and dict(pairs) for pairs in _per_key(stored, list(zip(keys, entries, strict=True)))]

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        ordered = [(row, _ordered(row or ())) for row in rows]
        (keys,) = self._user_keys.to_arrays([key for _, map_keys in ordered for key in map_keys])
        values, *times = self._fields.to_arrays(
            [row[key] for row, map_keys in ordered for key in map_keys], timed=self._times is not None
        )
        offsets, nulls = _offsets(rows), _nulls(rows)
        return [
            pa.MapArray.from_arrays(offsets, keys, values, mask=nulls),
            *(pa.ListArray.from_arrays(offsets, expiry_times, mask=nulls) for expiry_times in times),
        ]


def _ordered(keys: Iterable[Fields]) -> list[Fields]:
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=lambda key: [(field is not None, field) for field in key])


def _offsets(rows: Sequence[Any]) -> pa.Array:
    return pa.array(np.cumsum([0, *(len(row or ()) for row in rows)]), pa.int32())


def _nulls(rows: Sequence[Any]) -> pa.Array:
    return pa.array([row is None for row in rows], pa.bool_())


def _per_key(lists: pa.Array, entries: list[Any]) -> list[Any]:
    ends = lists.offsets.to_pylist()
    parts = [entries[begin:end] or None for begin, end in pairwise(ends)]
    for index in np.flatnonzero(np.asarray(lists.is_null())).tolist() if lists.null_count else ():
        parts[index] = None
    return parts


def _beside(times: pa.Array, lists: pa.Array) -> pa.Array:
    if times.offsets.equals(lists.offsets):
        return times.values
    sizes = np.diff(lists.offsets.to_numpy())
    padded = [expiry_times or [None] * int(size) for expiry_times, size in zip(times.to_pylist(), sizes, strict=True)]
    return pa.array([at for padded_times in padded for at in padded_times], pa.int64())


def earliest_times(times: pa.Array) -> Times:
    """Return int64[n]: the earliest time of each list, or each single time; `NEVER` for a null or empty list."""
    if not pa.types.is_list(times.type):
        return np.asarray(pc.fill_null(times, NEVER).to_numpy())
    flat, keys = pc.fill_null(times.flatten(), NEVER).to_numpy(), pc.list_parent_indices(times).to_numpy()
    least = np.full(len(times), NEVER)
    np.minimum.at(least, keys, flat)
    return least
