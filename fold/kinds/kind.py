"""The Protocols of a kind of state: what a user declares, and what workers call.

A `State` is the declaration (`aggregate`, `upsert`, `update`, `join`); bound to the schema of the stage's rows it
becomes a `BoundState`, which workers call once per batch and state partition, on whole Arrow tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, Usage


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch's rows by key: rows are sorted so that each key's rows are neighbours.

    Attributes:
        ids: int32[rows], the key's position, 0 to num - 1, ascending.
        starts: int64[num], each key's first row.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]

    @property
    def num(self) -> int:
        """Number of different keys."""
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Merged:
    """What a batch makes of the state.

    Attributes:
        values: One row per key of the batch, the table's value columns.
        deleted: bool[num], keys to remove; None for none.
        changed: bool[num], keys whose row must be written; None for all.
        emitted: Rows for the stage's outputs: one table for all of them, or one for each; empty when it emits none.
    """

    values: pa.Table
    deleted: npt.NDArray[np.bool_] | None = None
    changed: npt.NDArray[np.bool_] | None = None
    emitted: tuple[pa.Table, ...] = ()


class BoundState(Protocol):
    """A state that knows its rows' schema. Crosses to workers by pickle."""

    @property
    def values(self) -> pa.Schema:
        """The table's value columns; names that start with `_` are internal."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the rows, besides the key, that `merge` reads."""
        ...

    @property
    def emits(self) -> tuple[pa.Schema, ...]:
        """Schemas of the rows this state sends to the stage's outputs: one for all of them, or one for each."""
        ...

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """Merge a batch's rows into the rows of its keys; of a state whose rows fall due, none with rows that do.

        Args:
            rows: The batch's rows (key and needed columns), sorted by key as `groups` says.
            groups: Which row belongs to which key.
            keys: The key columns, one row per key.
            old: The value columns, one row per key; nulls where the key is new.
        """
        ...


@runtime_checkable
class Timely(Protocol):
    """A bound state whose merging asks up to when rows fall due."""

    def until(self, until_ms: int | None) -> BoundState:
        """The state for a batch in which what is due by then falls due; None where nobody knows yet how late it is."""
        ...


def as_of(state: BoundState, until_ms: int | None) -> BoundState:
    """A state for a batch in which what is due by then falls due: see `Timely`; itself where it does not ask."""
    return state.until(until_ms) if isinstance(state, Timely) else state


class State(Protocol):
    """A declared state."""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """Fix the table's columns for rows of these schemas, one for each DataFrame that the stage's function gives.

        Raises:
            NotFound: It names a column that there is not.
            Usage: It cannot be kept over such rows.
        """
        ...

    def describe(self) -> str:
        """One line that changes whenever stored values would change their meaning."""
        ...


_INPUT, _TIME = b"slackwater.input", b"slackwater.time"


def of_input(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    """The schema of a DataFrame of the stage's function, marked with its input and the column of its watermark."""
    return rows.with_metadata({_INPUT: name.encode()} | ({_TIME: time.encode()} if time else {}))


def input_of(rows: pa.Schema) -> str:
    """The input that `of_input` marked a schema with."""
    return str((rows.metadata or {}).get(_INPUT, b""), "utf-8")


def time_of(rows: pa.Schema) -> str | None:
    """The column with the time of these rows, by their watermark; None where they have none."""
    return str((rows.metadata or {}).get(_TIME, b""), "utf-8") or None


def only(rows: Sequence[pa.Schema], state: str) -> pa.Schema:
    """The schema of a state that takes rows of one kind. Raises `Usage` when there are several."""
    if len(rows) != 1:
        raise Usage(
            f"the stage's function returns {len(rows)} DataFrames, and {state} takes one",
            hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
        )
    return rows[0]


def field_of(rows: pa.Schema, column: str) -> pa.Field:
    """The field of a column. Raises `NotFound` with the nearest names."""
    index = rows.get_field_index(column)
    if index < 0:
        raise NotFound("column", column, rows.names)
    return rows.field(index)


def check_value_names(names: Sequence[str], key: tuple[str, ...]) -> None:
    """Refuse value columns that hide the key or look internal. Raises `Usage`."""
    for name in names:
        if name in key:
            raise Usage(f"column {name!r} is part of the key already; give the value another name")
        if name.startswith("_"):
            raise Usage(f"column {name!r} starts with '_', which is kept for internal columns; rename it")
