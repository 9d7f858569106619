"""Differences that are meant: a query over them names keys, and these are left out."""

from collections.abc import Iterable
from contextlib import closing

import numpy as np
import pyarrow as pa

from ...errors import Usage
from ..query.sql import empty_database, run_query
from .moments import TableDiff


def without(found: TableDiff, queries: Iterable[str]) -> TableDiff:
    """The differences of a table but for the keys that the queries return which name it.

    A query sees the differences as a table of that name: the key, `change` (added, removed or changed) and each value
    column as `before_…` and `after_…`. Raises `Usage` where one is wrong or does not return the key, and `NotFound`.
    """
    key = found.changes.keys.column_names
    for sql in queries:
        if found.table.casefold() not in sql.casefold():
            continue
        with closing(empty_database()) as con:
            # Keys of any type are told apart by their place.
            con.register(found.table, found.changes.flat())
            rows = run_query(con, sql)
            if missing := [name for name in key if name not in rows.column_names]:
                raise Usage(
                    f"the differences of {found.table} that are meant are named by their key: {', '.join(missing)} is "
                    "not among the columns of this query",
                    quoted=f"query: {sql}",
                )
            con.register("_meant", rows.select(key))
            con.register("_all", found.changes.keys.append_column("_place", pa.array(np.arange(len(found.changes)))))
            same = " AND ".join(f'a."{name}" IS NOT DISTINCT FROM m."{name}"' for name in key)
            left = con.sql(f"SELECT _place FROM _all a ANTI JOIN _meant m ON {same} ORDER BY _place").to_arrow_table()
        found = found.only(left["_place"].to_numpy())
    return found
