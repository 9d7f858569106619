"""Rows without a key: which of two collections has what the other has not, each row as often as it is there."""

import duckdb
import pyarrow as pa


def only_in(one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of `one` that `other` has not, or not as often. All of them where their columns differ."""
    if not one.num_columns or one.schema.names != other.schema.names:
        return one
    with duckdb.connect() as con:
        con.register("one", one)
        con.register("other", other)
        return con.sql("FROM one EXCEPT ALL FROM other").to_arrow_table().cast(one.schema)
