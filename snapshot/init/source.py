"""Rows from anywhere that DuckDB reads: a file, several, or what SQL returns."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ...errors import Refused, Usage
from ..query.sql import empty_database

_BATCH_ROWS = 1 << 17
"""Enough that a batch costs its rows, and few enough that some of them are little memory."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from; one of both is empty.

    Attributes:
        file: what DuckDB's `FROM 'file'` takes: Parquet, CSV or JSON, also as a pattern (`rows/*.parquet`) or a URL.
        sql: a query; statements before it, such as `ATTACH`, are run first.

    Raises:
        Usage: both are given, or none.
    """

    file: str = ""
    sql: str = ""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.sql):
            raise Usage(
                f"rows come from {'both a file and --sql' if self.file else 'neither a file nor --sql'}; expected one",
                hint="name a file that DuckDB reads (Parquet, CSV, JSON), or give a query by --sql",
            )

    def __str__(self) -> str:
        return self.file or "the query"


@contextmanager
def reading(source: Source) -> Iterator[pa.RecordBatchReader]:
    """The rows, read once, a batch at a time. Times are in UTC where the source does not say.

    Raises:
        Refused: DuckDB cannot read it, or what is read is no table.
    """
    with closing(empty_database()) as con, _telling(source):
        con.execute("SET TimeZone = 'UTC'")
        # Nobody has promised an order, and to keep one takes memory.
        con.execute("SET preserve_insertion_order = false")
        yield _relation(con, source).to_arrow_reader(_BATCH_ROWS)


def _relation(con: duckdb.DuckDBPyConnection, source: Source) -> duckdb.DuckDBPyRelation:
    if source.file:
        file = source.file.replace("'", "''")
        return con.sql(f"FROM '{file}'")
    statements = con.extract_statements(source.sql)
    if not statements or statements[-1].type is not duckdb.StatementType.SELECT:
        raise Usage("--sql returns no rows; expected a query, such as SELECT … FROM 'rows.parquet'")
    for statement in statements[:-1]:
        con.execute(statement)
    return con.sql(statements[-1].query)


@contextmanager
def _telling(source: Source) -> Iterator[None]:
    """What DuckDB says when it cannot read, as an error of ours; also while rows are read."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        sentence, _, more = str(error).strip().partition("\n")
        raise Refused(f"{source} cannot be read: {sentence}", quoted=more.strip()) from error
