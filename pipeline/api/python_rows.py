"""Rows of Arrow as code for Spark sees them, as Spark's `Row` or as frames of pandas; and what it gives, as Arrow."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row

from ...errors import Refused

Ids = npt.NDArray[np.int32]


class AsRows:
    """One `Row` for each row."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Each key, as a tuple."""
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))

    def groups(self, rows: pa.Table, ids: Ids, num: int) -> Callable[[int], Iterator[Any] | None]:
        """The rows of each of so many keys, None where it has none."""
        made = list(map(Row(*rows.column_names), *(column.to_pylist() for column in rows.columns)))
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()
        return lambda at: iter(made[ends[at] : ends[at + 1]]) if ends[at] < ends[at + 1] else None

    def nothing(self, _rows: pa.Schema) -> Iterator[Any]:
        """No row."""
        return iter(())

    def table(self, given: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Rows by the names of their fields; a field that is not there is null."""
        names, nested = schema.names, any(pa.types.is_nested(kind) for kind in schema.types)
        taken: list[tuple[Any, ...]] = []
        for row in given:
            if not isinstance(row, Row):
                raise Refused(f"the class gave {type(row).__name__}; expected Row", hint="in_pandas=True for frames")
            fields = getattr(row, "__fields__", None)
            if fields is None:
                raise Refused("the class gave a Row without names", hint=f"Row({', '.join(f'{n}=…' for n in names)})")
            if fields == names and not nested:
                taken.append(row)
            else:
                known = row.asDict(recursive=True)
                taken.append(tuple(known.get(name) for name in names))
        return _table(list(zip(*taken, strict=True)) or [()] * len(names), schema, nan_is_null=False)


class AsFrames:
    """One frame for each key."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Each key, as a tuple."""
        return list(_frame(keys).itertuples(index=False, name=None))

    def groups(self, rows: pa.Table, ids: Ids, num: int) -> Callable[[int], Iterator[Any] | None]:
        """The rows of each of so many keys as one frame, None where it has none."""
        frame = _frame(rows)
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()

        def group(at: int) -> Iterator[Any] | None:
            if ends[at] == ends[at + 1]:
                return None
            return iter([frame.iloc[ends[at] : ends[at + 1]].reset_index(drop=True)])

        return group

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        """One frame without rows."""
        return iter([pd.DataFrame(columns=rows.names)])

    def table(self, given: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Frames by the names of their columns, or, where these are no strings, by their positions."""
        columns: list[list[Any]] = [[] for _ in schema]
        for frame in given:
            if not isinstance(frame, pd.DataFrame):
                raise Refused(f"a frame was expected, and {type(frame).__name__} was given")
            if not len(frame):
                continue
            if any(isinstance(name, str) for name in frame.columns):
                if missing := [name for name in schema.names if name not in frame.columns]:
                    raise Refused(f"a frame lacks the column {missing[0]!r}; it has {', '.join(map(str, frame))}")
                parts = [frame[name] for name in schema.names]
            elif len(frame.columns) != len(schema):
                raise Refused(f"a frame has {len(frame.columns)} columns; expected {', '.join(schema.names)}")
            else:
                parts = [frame.iloc[:, at] for at in range(len(schema))]
            for column, part in zip(columns, parts, strict=True):
                column += part.tolist()
        return _table(columns, schema, nan_is_null=True)


def _frame(rows: pa.Table) -> pd.DataFrame:
    """As Spark hands rows to a function of these: times without a zone, in UTC, and numbers as Python's own."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_integer(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_floating(kind):
            column = column.cast(pa.float64())
        columns[name] = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
    return pd.DataFrame(columns)


def _table(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, nan_is_null: bool) -> pa.Table:
    """Python's values as columns. Raises `Refused` naming the one where they do not fit."""
    made = []
    for field, values in zip(schema, columns, strict=True):
        try:
            made.append(pa.array(values, field.type, from_pandas=nan_is_null))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(f"column {field.name!r} of what was given is no {field.type}: {error}") from error
    return pa.table(made, schema=schema)
