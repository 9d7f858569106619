"""Several DataFrames as one, and back: how the rows of a fan-in come to their state, and those of outputs to theirs.

A micro-batch is one Spark job over one DataFrame. The function's DataFrames, one per input or one per output, are
tagged and united (`pipeline/batch/transform.py`): `_input` is the position of the DataFrame a row came from, its
columns are named `_<position>_<column>`, and those of the others are null. Only the key columns, which all inputs have,
stand for themselves. A single DataFrame stays as it is.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TAG = "_input"


def columns(rows: Sequence[pa.Schema], key: Sequence[str]) -> tuple[str, ...]:
    """The columns that `tag` makes of rows of these schemas, the key left out."""
    if len(rows) == 1:
        return tuple(name for name in rows[0].names if name not in key)
    named = (name_of(at, name) for at, schema in enumerate(rows) for name in schema.names if name not in key)
    return (TAG, *named)


def untag(
    rows: pa.Table, schemas: Sequence[pa.Schema], key: Sequence[str], ids: npt.NDArray[np.int32]
) -> tuple[pa.Table, ...]:
    """Each input's rows, in their order and with their own columns, and the `ids` of these rows as `_key`."""
    if len(schemas) == 1:
        return (rows.append_column("_key", pa.array(ids)),)
    parts = by_input(rows, schemas, key)
    return tuple(table.append_column("_key", pa.array(ids[mine])) for mine, table in parts)


def by_input(
    rows: pa.Table, schemas: Sequence[pa.Schema], key: Sequence[str] = ()
) -> tuple[tuple[npt.NDArray[np.int64], pa.Table], ...]:
    """For each of the tagged DataFrames, the positions of its rows, and these rows with their own columns."""
    tags = rows[TAG].to_numpy()
    found = []
    for position, schema in enumerate(schemas):
        mine = np.flatnonzero(tags == position)
        names = [name if name in key else name_of(position, name) for name in schema.names]
        found.append((mine, rows.select(names).take(pa.array(mine)).rename_columns(schema.names)))
    return tuple(found)


def name_of(position: int, column: str) -> str:
    """What a column is called among those of all tagged DataFrames."""
    return f"_{position}_{column}"
