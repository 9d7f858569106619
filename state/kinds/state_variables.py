"""State variables of a user's class: columns of the table, whose values the class reads and writes key by key.

The method names are those of Spark's `ValueState` and of the timers of Spark's handle; `parts` has lists and maps. At
the first call, the values of all keys of a batch are converted from Arrow; after the batch, they are converted back.
Methods act on the current key (`BatchKeys.current`). Expired values are dropped before user code sees them.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    """State variable, as columns of the stage's table; lists and maps also have a table of parts."""

    name: str
    variable: Variable
    fields: pa.StructType
    key: pa.StructType | None = None

    @property
    def columns(self) -> list[pa.Field]:
        """Columns of the variable: its value, or for a list or map the number of its parts.

        With a ttl, also the expiry time.
        """
        form, count = self.variable.form, pa.int64()
        return [
            pa.field(self.name, self.fields if form == "value" else count),
            *([pa.field(span_column(self.name), SPAN)] if form == "list" else []),
            *([pa.field(expiry_column(self.name), pa.int64())] if self.variable.ttl_ms else []),
        ]


SPAN = pa.struct([("first", pa.int64()), ("next", pa.int64())])


def span_column(name: str) -> str:
    """Return the name of the column with a list's span: positions of the first element and of the next new element."""
    return f"_span_{name}"


def expiry_column(name: str) -> str:
    """Return the name of the column with a variable's earliest expiry time, in ms since 1970 UTC."""
    return f"_expires_{name}"


@dataclass(slots=True)
class BatchKeys:
    """Keys of a batch. User code runs for one key at a time, the `current` one."""

    num: int
    wall_ms: int
    """Wall clock of the batch, in ms since 1970 UTC. Values with this or an earlier expiry time are expired."""
    current: int = 0
    changed: npt.NDArray[np.bool_] = field(init=False)
    """bool[num], True for keys whose values differ from the stored values."""

    def __post_init__(self) -> None:
        self.changed = np.zeros(self.num, bool)


class _PerKey:
    """Values by key of a batch, converted from Arrow to Python at the first access."""

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


class ValueState(_PerKey):
    """State variable with one value for each key. With a ttl, the last element of a value is its expiry time."""

    def __init__(self, column: StateColumn, keys: BatchKeys, old: pa.Table, struct_of: StructOf) -> None:
        stored, *times = (old[field.name].combine_chunks() for field in column.columns)
        super().__init__(keys, stored)
        self._fields, self._times = Structs(column.name, column.fields, struct_of), times[0] if times else None
        self._until = (keys.wall_ms + column.variable.ttl_ms,) if times else ()
        if self._times is not None and (expired := earliest_times(self._times) <= keys.wall_ms).any():
            for key in np.flatnonzero(expired).tolist():
                self._all[key] = None
            self._written, keys.changed = True, keys.changed | expired

    def exists(self) -> bool:
        return self._row is not None

    def clear(self) -> None:
        if self._row is not None:
            self._put(None)

    def get(self) -> Fields | None:
        return self._fields.to_user(self._row[:-1] if self._until else self._row) if self._row is not None else None

    def update(self, newValue: Sequence[Any]) -> None:
        self._put(self._fields.from_user(newValue) + self._until)

    @property
    def arrays(self) -> list[pa.Array]:
        if self._written:
            return self._fields.to_arrays(self._all, timed=self._times is not None)
        return [self._stored, *([self._times] if self._times is not None else [])]

    def _python(self, stored: pa.Array) -> list[Any]:
        return self._fields.to_python(stored, self._times)


def earliest_times(times: pa.Array) -> Times:
    """Return int64[n]: the earliest time of each list, or each single time; `NEVER` for a null or empty list."""
    if not pa.types.is_list(times.type):
        return np.asarray(pc.fill_null(times, NEVER).to_numpy(zero_copy_only=False))
    flat, keys = pc.fill_null(times.flatten(), NEVER).to_numpy(), pc.list_parent_indices(times).to_numpy()
    least = np.full(len(times), NEVER)
    np.minimum.at(least, keys, flat)
    return least
