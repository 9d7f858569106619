"""Conversion of Arrow rows for code written for Spark, to `Row` or to pandas frames, and of its output to Arrow."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...errors import Refused

Ids = npt.NDArray[np.int32]


class _AsPython:
    def struct(self, kind: pa.StructType) -> StructType:
        """Return Spark's type of these structs."""
        return from_arrow_schema(pa.schema(list(kind)))


class AsRows(_AsPython):
    """Converts each row to a `Row`."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Return each key as a tuple."""
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))

    def groups(self, rows: pa.Table, ids: Ids, num: int) -> Callable[[int], Iterator[Any] | None]:
        """Return a function from a key's position to its rows; None for a key without rows."""
        python_rows = list(map(Row(*rows.column_names), *(column.to_pylist() for column in rows.columns)))
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()
        return lambda key: iter(python_rows[ends[key] : ends[key + 1]]) if ends[key] < ends[key + 1] else None

    def nothing(self, _rows: pa.Schema) -> Iterator[Any]:
        """Return an iterator without rows."""
        return iter(())

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert rows to a table, by field names; missing fields are null."""
        names, nested = schema.names, any(pa.types.is_nested(kind) for kind in schema.types)
        tuples: list[tuple[Any, ...]] = []
        for row in output:
            if not isinstance(row, Row):
                raise Refused(
                    f"the class returned {type(row).__name__}; expected Row", hint="in_pandas=True for frames"
                )
            fields = getattr(row, "__fields__", None)
            if fields is None:
                raise Refused(
                    "the class returned a Row without names", hint=f"Row({', '.join(f'{n}=…' for n in names)})"
                )
            if fields == names and not nested:
                tuples.append(row)
            else:
                values = row.asDict(recursive=True)
                tuples.append(tuple(values.get(name) for name in names))
        return _table(list(zip(*tuples, strict=True)) or [()] * len(names), schema, nan_is_null=False)


class AsFrames(_AsPython):
    """Converts the rows of a key to a pandas frame."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Return each key as a tuple."""
        return list(_frame(keys).itertuples(index=False, name=None))

    def groups(self, rows: pa.Table, ids: Ids, num: int) -> Callable[[int], Iterator[Any] | None]:
        """Return a function from a key's position to its rows as one frame; None for a key without rows."""
        frame = _frame(rows)
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()

        def group(key: int) -> Iterator[Any] | None:
            if ends[key] == ends[key + 1]:
                return None
            return iter([frame.iloc[ends[key] : ends[key + 1]].reset_index(drop=True)])

        return group

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        """Return one frame without rows."""
        return iter([pd.DataFrame(columns=rows.names)])

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert frames to a table, by column names, or by position if the names are no strings."""
        names, rows = schema.names, []
        for frame in output:
            if not isinstance(frame, pd.DataFrame):
                raise Refused(f"the code returned {type(frame).__name__}; expected a pandas DataFrame")
            if not len(frame):
                continue
            columns = frame.columns.tolist()
            if any(isinstance(name, str) for name in columns):
                if missing := [name for name in names if name not in columns]:
                    raise Refused(f"a frame lacks the column {missing[0]!r}; it has {', '.join(map(str, columns))}")
                frame = frame if columns == names else frame[names]
            elif len(columns) != len(names):
                raise Refused(f"a frame has {len(columns)} columns; expected {len(names)}: {', '.join(names)}")
            # Convert all columns at once: most frames have few rows, and converting each column costs more.
            rows += frame.to_numpy(dtype=object).tolist()
        return _table(list(zip(*rows, strict=True)) or [()] * len(names), schema, nan_is_null=True)


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Convert rows as Spark does for such functions: times without a zone, in UTC, and Python's own numbers."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_integer(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_floating(kind):
            column = column.cast(pa.float64())
        columns[name] = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True, maps_as_pydicts="lossy")
    return pd.DataFrame(columns)


def _table(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, nan_is_null: bool) -> pa.Table:
    """Convert Python values to columns. Raises `Refused` that names the column that does not fit."""
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, field.type, from_pandas=nan_is_null))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(f"column {field.name!r} of the returned rows does not fit {field.type}: {error}") from error
    return pa.table(arrays, schema=schema)
