"""Keys of one table with their rows at two moments, side by side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.arrow_types import maps_as_lists, python_rows
from .equality import Flags, Tolerance, flag_near_values, has_floats, is_number

_CHUNK_KEYS = 10_000
_IN_ARROW = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary),
    *(pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal),
)


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with its visible values at both moments, by column; None if the key had no row."""

    key: Mapping[str, object]
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    kind: Literal["added", "removed", "changed", "same"]


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Keys of one table with their rows at two moments. Arrays and tables have one element per key."""

    keys: pa.Table
    before: pa.Table
    after: pa.Table
    had_row: npt.NDArray[np.bool_]
    has_row: npt.NDArray[np.bool_]
    differing: Mapping[str, npt.NDArray[np.bool_]]
    """One flag per key, by value column: True if the key has different values at the two moments.

    False for keys without a row at one of the moments.
    """
    near_equal: Mapping[str, Flags] = field(default_factory=dict)
    """One flag per key, by float column: True if its values differ, but only within the tolerance.

    Empty for an exact comparison. Such keys count as equal.
    """
    from_predicate: bool = False
    """True if the keys are the keys in a predicate's result, in its order; False if they are all changed keys."""

    @classmethod
    def compare(
        cls,
        keys: pa.Table,
        before: pa.Table,
        after: pa.Table,
        had_row: npt.NDArray[np.bool_],
        has_row: npt.NDArray[np.bool_],
        *,
        tolerance: Tolerance | None = None,
    ) -> "KeyChanges":
        """Compare the rows of these keys: exactly, or with the tolerance of `equality`."""
        both = had_row & has_row
        if not before.num_rows or not before.num_columns:
            return cls(keys, before, after, had_row, has_row, dict.fromkeys(before.column_names, both))
        differing = {name: both & flags for name, flags in _distinct_values(before, after).items()}
        if tolerance is None:
            return cls(keys, before, after, had_row, has_row, differing)
        types = {name: before.schema.field(name).type for name in differing}
        inexact = [name for name, kind in types.items() if has_floats(kind) or (tolerance.absolute and is_number(kind))]
        within = {
            name: differing[name]
            & flag_near_values(before[name], after[name], tolerance.largest.get(name, 0.0), tolerance.absolute)
            for name in inexact
            if differing[name].any()
        }
        differing |= {name: differing[name] & ~flags for name, flags in within.items()}
        return cls(keys, before, after, had_row, has_row, differing, within)

    @classmethod
    def concat(cls, parts: Sequence["KeyChanges"]) -> "KeyChanges":
        def flags(of_parts: Iterable[Mapping[str, Flags]]) -> dict[str, Flags]:
            every = [*of_parts]
            names = dict.fromkeys(name for some in every for name in some)
            zeros = [np.zeros(len(part), np.bool_) for part in parts]
            return {
                name: np.concatenate([some.get(name, none) for some, none in zip(every, zeros, strict=True)])
                for name in names
            }

        return cls(
            pa.concat_tables(part.keys for part in parts),
            pa.concat_tables(part.before for part in parts),
            pa.concat_tables(part.after for part in parts),
            np.concatenate([part.had_row for part in parts]),
            np.concatenate([part.has_row for part in parts]),
            flags(part.differing for part in parts),
            flags(part.near_equal for part in parts),
        )

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def __iter__(self) -> Iterator[KeyChange]:
        kinds = self.kinds()
        for start in range(0, len(self), _CHUNK_KEYS):
            keys = python_rows(self.keys.slice(start, _CHUNK_KEYS))
            sides = (_python_rows(side.slice(start, _CHUNK_KEYS), len(keys)) for side in (self.before, self.after))
            for number, (key, earlier, later) in enumerate(zip(keys, *sides, strict=True), start):
                before, after = earlier if self.had_row[number] else None, later if self.has_row[number] else None
                yield KeyChange(key, before, after, kinds[number])

    def changed(self) -> Self:
        return self.take(np.flatnonzero(self.kinds() != "same"))

    def head(self, number: int) -> Self:
        return self.take(np.arange(min(number, len(self))))

    def take(self, positions: npt.NDArray[np.int64]) -> Self:
        keys, before, after = (side.take(pa.array(positions)) for side in (self.keys, self.before, self.after))
        return replace(
            self,
            keys=keys,
            before=before,
            after=after,
            had_row=self.had_row[positions],
            has_row=self.has_row[positions],
            differing={name: flags[positions] for name, flags in self.differing.items()},
            near_equal={name: flags[positions] for name, flags in self.near_equal.items()},
        )

    def sorted_by_key(self) -> Self:
        """Return a copy sorted by key; unchanged if the type of a key column has no order, such as a struct."""
        with suppress(pa.ArrowNotImplementedError, pa.ArrowTypeError):
            order = pc.sort_indices(self.keys, sort_keys=[(name, "ascending") for name in self.keys.column_names])
            return self.take(np.asarray(order))
        return self

    def kinds(self) -> npt.NDArray[np.object_]:
        changed = np.logical_or.reduce([np.zeros(len(self), np.bool_), *self.differing.values()])
        kinds = np.where(changed, "changed", "same")
        kinds = np.where(
            self.had_row & ~self.has_row, "removed", np.where(~self.had_row & self.has_row, "added", kinds)
        )
        return kinds.astype(np.object_)

    def to_table(self) -> pa.Table:
        """Return a table with one row per key: key columns, `change`, and each value as `before_…` and `after_…`."""
        table = self.keys.append_column("change", pa.array(self.kinds(), pa.string()))
        for name in self.before.column_names:
            for side, values in (("before", self.before), ("after", self.after)):
                table = table.append_column(f"{side}_{name}", values.column(name))
        return table


def _distinct_values(before: pa.Table, after: pa.Table) -> dict[str, npt.NDArray[np.bool_]]:
    """Return one flag per row for each column of `before`: True if the values differ. NaN equals NaN, null equals null.

    Arrow compares all types that it supports, because opening DuckDB takes tens of milliseconds.
    """
    flags, others = dict[str, npt.NDArray[np.bool_]](), list[str]()
    for name in before.column_names:
        one, other = before[name], after[name]
        if one.type != other.type or not any(is_kind(one.type) for is_kind in _IN_ARROW):
            others.append(name)
            continue
        unequal = pc.not_equal(one, other)
        if pa.types.is_floating(one.type):
            unequal = pc.and_(unequal, pc.invert(pc.and_(pc.is_nan(one), pc.is_nan(other))))
        unequal = pc.fill_null(unequal, pc.xor(pc.is_null(one), pc.is_null(other)))
        flags[name] = np.asarray(unequal.to_numpy(), np.bool_)
    if others:
        columns = {f"b{number}": _comparable(before[name]) for number, name in enumerate(others)}
        columns |= {f"a{number}": _comparable(after[name]) for number, name in enumerate(others)}
        tests = ", ".join(f"b{number} IS DISTINCT FROM a{number}" for number in range(len(others)))
        with duckdb.connect() as con:
            con.register("sides", pa.table(columns))
            unequal_columns = con.sql(f"SELECT {tests} FROM sides").to_arrow_table().columns
        flags |= {
            name: np.asarray(unequal.to_numpy(), np.bool_)
            for name, unequal in zip(others, unequal_columns, strict=True)
        }
    return {name: flags[name] for name in before.column_names}


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([maps_as_lists(chunk) for chunk in column.chunks or [pa.array([], column.type)]])


def _python_rows(values: pa.Table, count: int) -> list[dict[str, object]]:
    return python_rows(values) if values.num_columns else [{} for _ in range(count)]
