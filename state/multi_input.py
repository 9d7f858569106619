"""Union of several DataFrames into one with tagged rows, and the reverse split by DataFrame.

A micro-batch is one Spark job over one DataFrame. If a stage's function takes or returns several DataFrames, one for
each input or output, they are tagged and united (`pipeline/batch/transform.py`). The column `_input` has the index of a
row's DataFrame. The DataFrame's columns are named `_<index>_<column>`, and are null in rows of other DataFrames. Key
columns are common to all inputs and keep their names. A single DataFrame is not tagged.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

INPUT_COLUMN = "_input"


def union_columns(rows: Sequence[pa.Schema], key: Sequence[str]) -> tuple[str, ...]:
    """Return the column names of the tagged union of DataFrames with these schemas, without the key."""
    if len(rows) == 1:
        return tuple(name for name in rows[0].names if name not in key)
    named = (
        tagged_name(position, name) for position, schema in enumerate(rows) for name in schema.names if name not in key
    )
    return (INPUT_COLUMN, *named)


def split_with_keys(
    rows: pa.Table,
    schemas: Sequence[pa.Schema],
    key: Sequence[str],
    ids: npt.NDArray[np.int32],
    order_by: Sequence[str] = (),
) -> tuple[pa.Table, ...]:
    """Split the rows of a tagged union by input, and add each row's key number as column `_key`.

    Each part has the columns of its input. `ids` has the key number of each row. With `order_by`, each part is sorted
    by key number and by these columns.
    """
    if len(schemas) == 1:
        tables = [rows.append_column("_key", pa.array(ids))]
    else:
        parts = split_by_input(rows, schemas, key)
        tables = [table.append_column("_key", pa.array(ids[positions])) for positions, table in parts]
    order = [(name, "ascending") for name in ("_key", *order_by)] if order_by else []
    return tuple(table.take(pc.sort_indices(table, order)) if order else table for table in tables)


def split_by_input(
    rows: pa.Table, schemas: Sequence[pa.Schema], key: Sequence[str] = ()
) -> tuple[tuple[npt.NDArray[np.int64], pa.Table], ...]:
    """Return, for each input, the indices of its rows in the tagged union, and its rows with their own columns."""
    tags = rows[INPUT_COLUMN].to_numpy()
    parts = []
    for position, schema in enumerate(schemas):
        positions = np.flatnonzero(tags == position)
        names = [name if name in key else tagged_name(position, name) for name in schema.names]
        parts.append((positions, rows.select(names).take(pa.array(positions)).rename_columns(schema.names)))
    return tuple(parts)


def tagged_name(position: int, column: str) -> str:
    return f"_{position}_{column}"
