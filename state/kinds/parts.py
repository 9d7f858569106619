"""List and map variables of a user's class. Each list element or map entry, called a part, is a row of a side table.

The side table is named `<stage>_<variable>`. The stage's table stores only the number of a key's parts, so appending to
a list neither reads nor writes the existing elements. The first access to a key's parts reads all of them, together
with the parts of some keys that follow in the batch. Method names are those of Spark's `ListState` and `MapState`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.sst.schema import OP, PUT, TOMBSTONE
from ...store.versions.keys import PART_KEYS
from .state_variables import NEVER, SPAN, BatchKeys, StateColumn, earliest_times, expiry_column, span_column
from .structs import Fields, StructOf, Structs

POSITION, MAP_KEY = PART_KEYS
"""Key columns of parts: the position in a list, and the key in a map."""
_MAX_AHEAD_KEYS, _MAX_AHEAD_PARTS = 1_024, 10_000


class FindParts(Protocol):
    """Function that reads the stored parts of keys from the side table."""

    def __call__(
        self, keys: npt.NDArray[np.int64], parts: pa.Array | None = None, /
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Return the key's index for each stored part of some keys, ascending, and the rows of these parts.

        `keys` are indices of keys. If `parts` is given, it has one map key for each index in `keys`, and only these map
        entries are returned.
        """


@dataclass(frozen=True, slots=True)
class PartColumns:
    """Columns of a table of parts, without the key columns of the stage."""

    key: pa.Field
    values: tuple[pa.Field, ...]


def part_columns(column: StateColumn) -> PartColumns | None:
    """Return the columns of a variable's parts; None for a single value."""
    if column.variable.form == "value":
        return None
    times = (pa.field(expiry_column(column.name), pa.int64()),) if column.variable.ttl_ms else ()
    key = pa.field(POSITION, pa.int64()) if column.key is None else pa.field(MAP_KEY, column.key)
    return PartColumns(key, (pa.field(column.name, column.fields), *times))


class PartState:
    """List or map variable of the user's class, with its parts (elements or entries) for the keys of a batch.

    If the variable has a time to live, each part's tuple of values ends with the part's expiry time.
    """

    def __init__(
        self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf, find: FindParts
    ) -> None:
        self._column, self._keys, self._find = column, keys, find
        self._fields = Structs(column.name, column.fields, struct_of)
        self._counts = old[column.name].combine_chunks().fill_null(0).to_numpy().copy()
        self._stored_counts = self._counts.copy()
        self._entries: dict[int, dict[Any, Fields]] = {}
        """All parts of each key whose parts were read."""
        self._writes: dict[int, dict[Any, Fields | None]] = {}
        self._ahead = 1
        self._until = (keys.wall_ms + column.variable.ttl_ms,) if column.variable.ttl_ms else ()
        self._expiry = np.full(keys.num, NEVER)
        if self._until:
            self._expiry = earliest_times(old[expiry_column(column.name)].combine_chunks()).copy()
            self._drop_expired()

    def exists(self) -> bool:
        return bool(self._counts[self._keys.current])

    @property
    def arrays(self) -> list[pa.Array]:
        """Columns of the variable in the stage's table: number of parts, span of positions, earliest expiry time."""
        times = [pa.array(self._expiry, mask=self._expiry == NEVER)] if self._until else []
        return [pa.array(self._counts, mask=self._counts == 0), *self._span_arrays(), *times]

    def written_parts(self, keys: pa.Table) -> pa.Table | None:
        """Return the parts to write, with key columns and `_op`; None for none. `keys` are the keys of the batch."""
        owners, parts, entries = list[int](), list[Any](), list[Fields | None]()
        for key, writes in self._writes.items():
            owners += [key] * len(writes)
            parts += writes.keys()
            entries += writes.values()
        if not owners:
            return None
        arrays = self._fields.to_arrays(entries, timed=bool(self._until))
        columns = part_columns(self._column)
        assert columns is not None  # noqa: S101  a list or a map has parts
        names = [columns.key.name, *(field.name for field in columns.values), OP]
        ops = pa.array([TOMBSTONE if entry is None else PUT for entry in entries], pa.int8())
        taken = keys.take(pa.array(owners))
        return pa.table([*taken.columns, self._key_array(parts), *arrays, ops], [*taken.column_names, *names])

    def _drop_expired(self) -> None:
        for key in np.flatnonzero(self._expiry <= self._keys.wall_ms).tolist():
            alive = self._load(key)
            for part in [part for part, entry in alive.items() if not self._is_alive(entry)]:
                self._write(key, part, None)
            self._expiry[key] = min((entry[-1] for entry in alive.values() if entry[-1] is not None), default=NEVER)
            self._keys.changed[key] = True
            self._narrow_span(key, alive)

    def _is_alive(self, entry: Fields) -> bool:
        # Entries written before the variable had a time to live have no expiry time.
        return entry[-1] is None or entry[-1] > self._keys.wall_ms

    def _load(self, key: int) -> dict[Any, Fields]:
        """Return all parts of a key, by position or map key.

        Also reads ahead the parts of the next keys in the batch. The number of these keys doubles with each read, up to
        a limit.
        """
        if key in self._entries:
            return self._entries[key]
        following = np.arange(key, min(key + self._ahead, self._keys.num))
        is_first = following == key
        following = following[is_first | ((self._stored_counts[following] > 0) & (following > key))]
        following = np.array([index for index in following.tolist() if index not in self._entries])
        total = np.cumsum(self._stored_counts[following])
        following = following[(total <= _MAX_AHEAD_PARTS) | (following == key)]
        self._ahead = min(2 * self._ahead, _MAX_AHEAD_KEYS)
        stored = following[self._stored_counts[following] > 0]
        for index in following.tolist():
            self._entries[index] = {}
        if stored.size:
            owners, rows = self._find(stored)
            for owner, part, entry in zip(owners.tolist(), self._parts(rows), self._values(rows), strict=True):
                self._entries[owner][part] = entry
        for index in following.tolist():
            for part, written in self._writes.get(index, {}).items():
                _set(self._entries[index], part, written)
        return self._entries[key]

    def _values(self, rows: pa.Table) -> list[Fields]:
        values = self._fields.to_python(
            rows[self._column.name].combine_chunks(),
            rows[expiry_column(self._column.name)].combine_chunks() if self._until else None,
        )
        # A clone with masks has null parts.
        null = (None,) * (self._column.fields.num_fields + len(self._until))
        return [null if entry is None else entry for entry in values]

    def _write(self, key: int, part: Any, entry: Fields | None) -> None:
        self._writes.setdefault(key, {})[part] = entry
        self._keys.changed[key] = True
        if key in self._entries:
            _set(self._entries[key], part, entry)
            self._counts[key] = len(self._entries[key])
        if entry is not None and self._until:
            self._expiry[key] = min(self._expiry[key], entry[-1])

    def _forget(self, key: int, stored: Iterable[Any]) -> None:
        """Remove all parts of a key.

        `stored` has the positions or map keys that the side table may have for the key.
        """
        self._writes[key] = dict.fromkeys(stored)
        self._entries[key] = {}
        self._counts[key], self._expiry[key] = 0, NEVER
        self._keys.changed[key] = True

    def _taken(self, value: Sequence[Any]) -> Fields:
        return self._fields.from_user(value) + self._until

    def _given(self, entry: Fields) -> Fields:
        return self._fields.to_user(entry[:-1] if self._until else entry)

    def _span_arrays(self) -> list[pa.Array]:
        return []

    def _narrow_span(self, key: int, alive: Mapping[Any, Fields]) -> None: ...

    def _parts(self, rows: pa.Table) -> list[Any]:
        raise NotImplementedError

    def _key_array(self, parts: list[Any]) -> pa.Array:
        raise NotImplementedError


def _set(entries: dict[Any, Any], part: Any, entry: Any) -> None:
    if entry is None:
        entries.pop(part, None)
    else:
        entries[part] = entry


class ListState(PartState):
    """State variable with a list of values for each key."""

    def __init__(
        self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf, find: FindParts
    ) -> None:
        spans = old[span_column(column.name)].combine_chunks()
        self._first, self._next = (part.fill_null(0).to_numpy().copy() for part in spans.flatten())
        self._stored_spans = self._first.copy(), self._next.copy()
        super().__init__(column, keys, old, struct_of, find)

    def get(self) -> Iterator[Fields]:
        if not self.exists():
            return iter(())
        entries = self._load(self._keys.current)
        return iter([self._given(entries[position]) for position in sorted(entries)])

    def put(self, newState: Iterable[Sequence[Any]]) -> None:
        values = list(map(self._taken, newState))
        self.clear()
        self._append(values)

    def appendValue(self, newState: Sequence[Any]) -> None:
        self._append([self._taken(newState)])

    def appendList(self, newState: Iterable[Sequence[Any]]) -> None:
        self._append(list(map(self._taken, newState)))

    def clear(self) -> None:
        if self.exists():
            key = self._keys.current
            first, end = self._stored_spans
            self._forget(key, range(first[key], end[key]))
            self._first[key] = self._next[key] = 0

    def _append(self, entries: Sequence[Fields]) -> None:
        key = self._keys.current
        for position, entry in enumerate(entries, int(self._next[key])):
            self._write(key, position, entry)
        if entries:
            self._next[key] += len(entries)
            if key not in self._entries:
                self._counts[key] += len(entries)

    def _narrow_span(self, key: int, alive: Mapping[Any, Fields]) -> None:
        self._first[key] = min(alive, default=0)
        self._next[key] = max(alive, default=-1) + 1

    def _span_arrays(self) -> list[pa.Array]:
        positions, is_empty = [pa.array(self._first), pa.array(self._next)], pa.array(self._counts == 0)
        return [pa.StructArray.from_arrays(positions, fields=list(SPAN), mask=is_empty)]

    def _parts(self, rows: pa.Table) -> list[Any]:
        return rows[POSITION].to_pylist()  # type: ignore[no-any-return]

    def _key_array(self, parts: list[Any]) -> pa.Array:
        return pa.array(parts, pa.int64())


class MapState(PartState):
    """State variable with a map for each key. Iteration is in the order of the map's keys."""

    def __init__(
        self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf, find: FindParts
    ) -> None:
        assert column.key is not None  # noqa: S101  a map has one
        self._user_keys = Structs(column.name, column.key, struct_of)
        self._single_entries: dict[tuple[int, Fields], Fields | None] = {}
        """Stored entries that were read by their whole keys."""
        super().__init__(column, keys, old, struct_of, find)

    def getValue(self, key: Sequence[Any]) -> Any:
        entry = self._entry(self._user_keys.from_user(key))
        return self._fields.to_named_row(self._given(entry)) if entry is not None else None

    def containsKey(self, key: Sequence[Any]) -> bool:
        return self._entry(self._user_keys.from_user(key)) is not None

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:
        self._put(self._user_keys.from_user(key), self._taken(value))

    def removeKey(self, key: Sequence[Any]) -> None:
        if self._entry(part := self._user_keys.from_user(key)) is not None:
            self._put(part, None)
            if not self.exists():
                self._expiry[self._keys.current] = NEVER

    def clear(self) -> None:
        if self.exists():
            key = self._keys.current
            self._forget(key, [*self._load(key), *self._writes.get(key, ())])

    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        entries = self._load(self._keys.current)
        return iter([(key, self._given(entries[key])) for key in self.keys()])

    def keys(self) -> Iterator[Fields]:
        return iter(_ordered(self._load(self._keys.current)))

    def values(self) -> Iterator[Fields]:
        return iter([value for _, value in self.iterator()])

    def _put(self, part: Fields, entry: Fields | None) -> None:
        key, existed = self._keys.current, self._entry(part) is not None
        self._write(key, part, entry)
        if key not in self._entries:
            self._counts[key] += (entry is not None) - existed

    def _entry(self, part: Fields) -> Fields | None:
        """Return the map entry `part` of the current key. Reads all entries of the key, unless the key has too many."""
        key = self._keys.current
        if key not in self._entries and self._stored_counts[key] > _MAX_AHEAD_PARTS:
            if part in self._writes.get(key, ()):
                return self._writes[key][part]
            if (key, part) not in self._single_entries:
                _, rows = self._find(np.array([key]), self._key_array([part]))
                self._single_entries[key, part] = next(iter(self._values(rows)), None)
            return self._single_entries[key, part]
        return self._load(key).get(part)

    def _parts(self, rows: pa.Table) -> list[Any]:
        return self._user_keys.to_python(rows[MAP_KEY].combine_chunks())

    def _key_array(self, parts: list[Any]) -> pa.Array:
        return self._user_keys.to_arrays(parts)[0]


def _ordered(keys: Iterable[Fields]) -> list[Fields]:
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=lambda key: [(field is not None, field) for field in key])
