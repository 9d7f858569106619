"""Which rows of a table an SQL statement changes: DuckDB carries it out on a copy, which is compared with the table.

The statement sees all tables of the moment, no file and no setting, and can change that one table alone.
"""

import re
from contextlib import closing

import duckdb
import pyarrow as pa

from ...errors import Refused, Usage
from ...fold.kinds.replaced import DELETED
from ...moments.cut.graph import Cut
from ...moments.query.sql import connect, in_words, named_tables
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.sst.types import DUE, arrow_schema
from ...store.versions.manifest import Table
from ..init.source import EXAMPLES, examples

_CHANGING = ("UPDATE", "DELETE", "INSERT", "MERGE_INTO")
_ANOTHER_TABLE = re.compile(r"Can only (?:update|delete from|merge into) base table|is not an table")
"""How DuckDB says that a statement changes a view, as which the app's other tables are there."""
_BEFORE = "the table before"
_MEMORY = "1 GiB"
"""What the copy may take; beyond that, DuckDB goes to disk."""


def changed_rows(store: ObjectStore, cache: SstCache, cut: Cut, name: str, sql: str) -> pa.Table:
    """The rows of the table `name` that a statement changes: key, values and `DELETED`, one of each key.

    Internal columns are there as well, but for `_due_at`. Of rows that go, values are null. Takes as long as a scan of
    the table.

    Raises `Usage` where the SQL is wrong, or no single statement that changes rows, `NotFound` where it names a table
    or column that there is not, `Refused` where two rows would have one key, `Corruption` and `Unavailable`.
    """
    table = cut.tables[name].table
    assert table is not None  # noqa: S101  it is among the cut's tables
    only = named_tables(sql, cut, or_all=False) | {name}
    with closing(connect(store, cache, cut, only=only, whole=name, memory=_MEMORY)) as con:
        try:
            statement = _changing(con, sql)
            con.execute(f"ALTER VIEW {quoted(name)} RENAME TO {quoted(_BEFORE)}")
            con.execute(f"CREATE TABLE {quoted(name)} AS SELECT {_columns_of(table)} FROM {quoted(_BEFORE)}")
            con.execute(statement)
            return _compared(con, table, name)
        except duckdb.Error as error:
            if _ANOTHER_TABLE.search(str(error)):
                raise Usage(
                    f"an edit of {cut.app}/{name} changes the table {name} alone, and this statement changes another",
                    quoted=f"statement: {sql.strip()}",
                    hint=f"the other one is changed by an edit of its own: slackwater edit {cut.app}/TABLE",
                ) from error
            raise in_words(con, sql, error) from error


def _changing(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    statements, quote = con.extract_statements(sql), f"statement: {sql.strip()}"
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=quote)
    if (kind := statements[0].type.name) not in _CHANGING:
        hint = "to see rows: slackwater query"
        raise Usage(
            f"this is a {kind} statement; an edit is an UPDATE, DELETE, INSERT or MERGE", quoted=quote, hint=hint
        )
    return str(statements[0].query)


def _compared(con: duckdb.DuckDBPyConnection, table: Table, name: str) -> pa.Table:
    key = [column.name for column in table.key]
    keys, after = ", ".join(map(quoted, key)), quoted(name)
    con.execute(f"CREATE TABLE changed AS FROM {after} EXCEPT ALL SELECT {_columns_of(table)} FROM {quoted(_BEFORE)}")
    same = " AND ".join(f"t.{quoted(one)} IS NOT DISTINCT FROM c.{quoted(one)}" for one in key)
    twice = con.sql(
        f"SELECT {keys} FROM {after} t SEMI JOIN changed c ON {same} GROUP BY ALL HAVING count(*) > 1 LIMIT {EXAMPLES}"
    ).to_arrow_table()
    if twice.num_rows:
        raise Refused(
            f"{name} would have several rows of one key, such as {examples(twice)}",
            hint="nothing was changed; UPDATE changes rows that are there, INSERT is for keys that are not",
        )
    gone = f"SELECT {keys} FROM {quoted(_BEFORE)} EXCEPT SELECT {keys} FROM {after}"
    rows = con.sql(f"SELECT *, false {DELETED} FROM changed UNION ALL BY NAME SELECT *, true {DELETED} FROM ({gone})")
    wanted = arrow_schema((*table.key, *table.values))
    fields = [wanted.field(one) for one in _columns(table)]
    return rows.to_arrow_table().cast(pa.schema([*fields, (DELETED, pa.bool_())]))


def _columns(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.name != DUE]


def _columns_of(table: Table) -> str:
    return ", ".join(map(quoted, _columns(table)))
