"""State variables of a class of the user's: columns of the table, and what Python sees of them, key by key.

Their methods are those of Spark's `ValueState`, `ListState` and `MapState`, and of the timers of its handle, by their
names. What all keys of a batch have is taken out of Arrow at once, when a method first asks, and put back at once;
methods are about the key at hand (`KeysAtHand.at`). What has expired is left out before anybody sees it.
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
"""The column with a key's timers, milliseconds since 1970 UTC, ascending."""
NEVER = (1 << 63) - 1


class Variable(Struct, frozen=True, omit_defaults=True):
    """A state variable, as a manifest keeps it."""

    form: Form
    ttl_ms: int = 0
    """How long what is in it lives from when it was last written; 0 for ever."""


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A state variable as columns of the table."""

    name: str
    variable: Variable
    fields: pa.StructType
    """Of a value, of an element of a list, or of a value of a map."""
    key: pa.StructType | None = None
    """Of a map's key."""

    @property
    def columns(self) -> list[pa.Field]:
        """The variable, and beside it when what is in it expires, if that does: milliseconds since 1970 UTC."""
        kind, times = self.fields, pa.int64()
        if self.variable.form != "value":
            kind, times = pa.map_(self.key, kind) if self.key is not None else pa.list_(kind), pa.list_(times)
        return [pa.field(self.name, kind), *([pa.field(expires(self.name), times)] if self.variable.ttl_ms else [])]

    def of(self, keys: "KeysAtHand", old: pa.Table, struct_of: StructOf) -> "StateVariable":
        """What the keys of a batch have in it: `old` has the table's columns, one row for each."""
        return {"value": ValueState, "list": ListState, "map": MapState}[self.variable.form](self, keys, old, struct_of)


def expires(name: str) -> str:
    """The column with the times at which what is in the variable `name` expires; where there are several, a list."""
    return f"_expires_{name}"


@dataclass(slots=True)
class KeysAtHand:
    """The keys of a batch, one of which is at hand."""

    num: int
    wall_ms: int
    """The time by which what was written expires."""
    at: int = 0
    """The position of the key at hand."""
    changed: npt.NDArray[np.bool_] = field(init=False)
    """bool[num], for which of them something is not as it was stored."""

    def __post_init__(self) -> None:
        self.changed = np.zeros(self.num, bool)


class _PerKey:
    """What each key of a batch has of something: as it is stored, and in Python when it is asked for."""

    def __init__(self, keys: KeysAtHand, stored: pa.Array) -> None:
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
        """Of the key at hand; None for nothing."""
        return self._all[self._keys.at]

    def _put(self, row: Any) -> None:
        self._all[self._keys.at] = row
        self._written = self._keys.changed[self._keys.at] = True

    def _python(self, stored: pa.Array) -> list[Any]:
        raise NotImplementedError


class Timers(_PerKey):
    """The timers of each key."""

    def __init__(self, keys: KeysAtHand, old: pa.Table) -> None:
        super().__init__(keys, old[TIMERS].combine_chunks())

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have one more, unless it is there."""
        if (at_ms := int(expiryTimestampMs)) not in (mine := self._row or []):
            insort(mine, at_ms)
            self._put(mine)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Have one less, if it is there."""
        if (at_ms := int(expiryTimestampMs)) in (mine := self._row or []):
            mine.remove(at_ms)
            self._put(mine or None)

    def listTimers(self) -> Iterator[int]:
        """Those of the key at hand, ascending."""
        return iter(list(self._row or ()))

    def expired(self, until_ms: int) -> list[tuple[int, int]]:
        """The timers of all keys that have passed by then, with the positions of their keys: in their order."""
        if not self._written and not (least(self._stored) <= until_ms).any():
            return []
        return sorted((at_ms, key) for key, mine in enumerate(self._all) for at_ms in mine or () if at_ms <= until_ms)

    @property
    def array(self) -> pa.Array:
        """The column."""
        return pa.array(self._rows, self._stored.type) if self._written else self._stored

    def _python(self, stored: pa.Array) -> list[Any]:
        return stored.to_pylist()  # type: ignore[no-any-return]


class StateVariable(_PerKey):
    """A state variable, for the keys of a batch. Where it has a time to live, entries end in when they expire."""

    def __init__(self, column: StateColumn, keys: KeysAtHand, old: pa.Table, struct_of: StructOf) -> None:
        stored, *times = (old[each.name].combine_chunks() for each in column.columns)
        super().__init__(keys, stored)
        self._fields, self._times = Structs(column.name, column.fields, struct_of), times[0] if times else None
        self._until = (keys.wall_ms + column.variable.ttl_ms,) if times else ()
        if self._times is not None and (over := least(self._times) <= keys.wall_ms).any():
            for at in np.flatnonzero(over).tolist():
                self._all[at] = self._alive(self._all[at])
            self._written, keys.changed = True, keys.changed | over

    def exists(self) -> bool:
        """Whether something is in it."""
        return self._row is not None

    def clear(self) -> None:
        """Have nothing in it."""
        if self._row is not None:
            self._put(None)

    @property
    def arrays(self) -> list[pa.Array]:
        """Its columns, as `StateColumn.columns`."""
        if self._written:
            return self._arrays(self._all)
        return [self._stored, *([self._times] if self._times is not None else [])]

    def _taken(self, value: Sequence[Any]) -> Fields:
        return self._fields.taken(value) + self._until

    def _given(self, entry: Fields) -> Fields:
        return self._fields.given(entry[:-1] if self._until else entry)

    def _is_alive(self, entry: Fields) -> bool:
        # Of what was written before it had a time to live, it is not known when it expires.
        return entry[-1] is None or entry[-1] > self._keys.wall_ms

    def _alive(self, row: Any) -> Any:
        """What of a key's has not expired; None for nothing."""
        raise NotImplementedError

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        raise NotImplementedError


class ValueState(StateVariable):
    """One value of each key."""

    def get(self) -> Fields | None:
        """The value; None where there is none."""
        return self._given(self._row) if self._row is not None else None

    def update(self, newValue: Sequence[Any]) -> None:
        """Have this value."""
        self._put(self._taken(newValue))

    def _alive(self, row: Any) -> Any:
        return row if row is not None and self._is_alive(row) else None

    def _python(self, stored: pa.Array) -> list[Any]:
        return self._fields.python(stored, self._times)

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        return self._fields.arrays(rows, timed=self._times is not None)


class ListState(StateVariable):
    """Several values of each key, in an order."""

    def get(self) -> Iterator[Fields]:
        """The values."""
        return iter([self._given(each) for each in self._row or ()])

    def put(self, newState: Iterable[Sequence[Any]]) -> None:
        """Have these values, and no others."""
        self._put(list(map(self._taken, newState)) or None)

    def appendValue(self, newState: Sequence[Any]) -> None:
        """Have this value, too."""
        self.appendList([newState])

    def appendList(self, newState: Iterable[Sequence[Any]]) -> None:
        """Have these values, too."""
        mine = self._row or []
        mine += list(map(self._taken, newState))
        self._put(mine or None)

    def _alive(self, row: Any) -> Any:
        return list(filter(self._is_alive, row or ())) or None

    def _python(self, stored: pa.Array) -> list[Any]:
        times = _beside(self._times, stored) if self._times is not None else None
        return _per_key(stored, self._fields.python(stored.values, times))

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        made = self._fields.arrays([each for row in rows for each in row or ()], timed=self._times is not None)
        return [pa.ListArray.from_arrays(_offsets(rows), each, mask=_nulls(rows)) for each in made]


class MapState(StateVariable):
    """Values of each key by keys of the user's, which come in their order."""

    def __init__(self, column: StateColumn, keys: KeysAtHand, old: pa.Table, struct_of: StructOf) -> None:
        assert column.key is not None  # noqa: S101  a map has one
        self._user_keys = Structs(column.name, column.key, struct_of)
        super().__init__(column, keys, old, struct_of)

    def getValue(self, key: Sequence[Any]) -> Any:
        """The value of a key, here as a row that knows its fields; None where there is none."""
        entry = (self._row or {}).get(self._user_keys.taken(key))
        return self._fields.named(self._given(entry)) if entry is not None else None

    def containsKey(self, key: Sequence[Any]) -> bool:
        """Whether a key has a value."""
        return self._user_keys.taken(key) in (self._row or {})

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:
        """Have this value of a key."""
        mine = self._row or {}
        mine[self._user_keys.taken(key)] = self._taken(value)
        self._put(mine)

    def removeKey(self, key: Sequence[Any]) -> None:
        """Have no value of a key."""
        mine = self._row or {}
        if mine.pop(self._user_keys.taken(key), None) is not None:
            self._put(mine or None)

    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        """Keys and their values."""
        return iter([(key, self._given(self._row[key])) for key in self.keys()])

    def keys(self) -> Iterator[Fields]:
        """The keys."""
        return iter(_ordered(self._row or ()))

    def values(self) -> Iterator[Fields]:
        """The values, in the order of their keys."""
        return iter([value for _, value in self.iterator()])

    def _alive(self, row: Any) -> Any:
        return {key: entry for key, entry in (row or {}).items() if self._is_alive(entry)} or None

    def _python(self, stored: pa.Array) -> list[Any]:
        times = _beside(self._times, stored) if self._times is not None else None
        keys, entries = self._user_keys.python(stored.keys), self._fields.python(stored.items, times)
        return [each and dict(each) for each in _per_key(stored, list(zip(keys, entries, strict=True)))]

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        ordered = [(row, _ordered(row or ())) for row in rows]
        (keys,) = self._user_keys.arrays([key for _, mine in ordered for key in mine])
        values, *times = self._fields.arrays(
            [row[key] for row, mine in ordered for key in mine], timed=self._times is not None
        )
        offsets, nulls = _offsets(rows), _nulls(rows)
        return [
            pa.MapArray.from_arrays(offsets, keys, values, mask=nulls),
            *(pa.ListArray.from_arrays(offsets, each, mask=nulls) for each in times),
        ]


def _ordered(keys: Iterable[Fields]) -> list[Fields]:
    """Keys of a map in an order that does not depend on that in which they came: nulls are before all."""
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=lambda key: [(each is not None, each) for each in key])


def _offsets(rows: Sequence[Any]) -> pa.Array:
    return pa.array(np.cumsum([0, *(len(row or ()) for row in rows)]), pa.int32())


def _nulls(rows: Sequence[Any]) -> pa.Array:
    return pa.array([row is None for row in rows], pa.bool_())


def _per_key(lists: pa.Array, entries: list[Any]) -> list[Any]:
    """For each of these lists, or maps, its part of all `entries`; None for an empty one."""
    ends = lists.offsets.to_pylist()
    parts = [entries[begin:end] or None for begin, end in pairwise(ends)]
    for at in np.flatnonzero(np.asarray(lists.is_null())).tolist() if lists.null_count else ():
        parts[at] = None
    return parts


def _beside(times: pa.Array, lists: pa.Array) -> pa.Array:
    """The times of all entries of these lists; null in those that have none."""
    if times.offsets.equals(lists.offsets):
        return times.values
    sizes = np.diff(lists.offsets.to_numpy())
    known = [each or [None] * int(size) for each, size in zip(times.to_pylist(), sizes, strict=True)]
    return pa.array([at for mine in known for at in mine], pa.int64())


def least(times: pa.Array) -> Times:
    """int64[n], the least of each list of times, or each time; `NEVER` where there is none."""
    if not pa.types.is_list(times.type):
        return np.asarray(pc.fill_null(times, NEVER).to_numpy())
    flat, keys = pc.fill_null(times.flatten(), NEVER).to_numpy(), pc.list_parent_indices(times).to_numpy()
    least = np.full(len(times), NEVER)
    np.minimum.at(least, keys, flat)
    return least
