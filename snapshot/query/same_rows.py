"""Whether rows are the same, whatever their types: DuckDB compares them. NaN is NaN, null is null, -0.0 is 0.0."""

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.read.duckdb_view import quoted


def differing(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """The rows that one table has more often than the other, in any order; the columns are the same."""
    with duckdb.connect() as con:
        con.register("ours", ours)
        con.register("theirs", theirs.select(ours.column_names))
        return con.sql(
            "(FROM ours EXCEPT ALL FROM theirs) UNION ALL (FROM theirs EXCEPT ALL FROM ours)"
        ).to_arrow_table()


def only_in(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """The rows that `ours` has more often than `theirs`, in any order; the columns are the same."""
    with duckdb.connect() as con:
        con.register("ours", ours)
        con.register("theirs", theirs.select(ours.column_names))
        return con.sql("FROM ours EXCEPT ALL FROM theirs").to_arrow_table().cast(ours.schema)


def places_of(wanted: pa.Table, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Where in `rows` those of `wanted` stand, ascending. The columns of `wanted` are compared."""
    tests = [f"r.{quoted(name)} IS NOT DISTINCT FROM o.{quoted(name)}" for name in wanted.column_names]
    with duckdb.connect() as con:
        con.register("o", wanted)
        con.register("r", rows.append_column("_place", pa.array(np.arange(rows.num_rows))))
        found = con.sql(f"SELECT DISTINCT r._place FROM r, o WHERE {' AND '.join(tests)} ORDER BY 1").to_arrow_table()
    return np.asarray(found["_place"].to_numpy(), np.int64)
