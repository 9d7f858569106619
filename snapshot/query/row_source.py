"""Rows from anywhere that DuckDB reads, a file, several, or what SQL returns, as the columns of a table.

A value is taken where its type has the same values in another size or layout, and where none is lost: an integer for a
wider or narrower one that holds it, a decimal for a double. A number is not taken for text, or a time without a zone
for one with: what was meant only its owner knows, who says so with a cast in SQL.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...common.validation import nearest
from ...errors import Refused, Usage
from ...store.sst.arrow_types import from_arrow, python_rows
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Table, is_internal
from .clauses import bare
from .sql import empty_database

_BATCH_ROWS = 1 << 17
"""Enough that a batch costs its rows, and few enough that some of them are little memory."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Where rows come from: one of both, else it raises `Usage`."""

    file: str = ""
    """What DuckDB's `FROM 'file'` takes: Parquet, CSV or JSON, also as a pattern (`rows/*.parquet`) or a URL."""
    sql: str = ""
    """A query; statements before it, such as `ATTACH`, are run first."""
    only_files: bool = False
    """Whether a query cannot be given instead of a file: of an edit, `--sql` is the statement that changes rows."""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.sql):
            raise Usage(
                f"rows come from {'both a file and --sql' if self.file else 'neither a file nor --sql'}; expected one",
                hint="name a file that DuckDB reads (Parquet, CSV, JSON), or give a query by --sql",
            )

    def __str__(self) -> str:
        return self.file or "the query"

    @property
    def remedy(self) -> str:
        """What renames, casts and leaves out."""
        select = f"SELECT … FROM '{self.file or '…'}'"
        return (
            f"a file that DuckDB writes by COPY ({select}) TO 'new.parquet'" if self.only_files else f'--sql "{select}"'
        )


@contextmanager
def reading(source: RowSource) -> Iterator[pa.RecordBatchReader]:
    """The rows, read once, a batch at a time. Times are in UTC where the source does not say.

    Raises `Refused` where DuckDB cannot read it, or what is read is no table.
    """
    with closing(empty_database()) as con:
        con.execute("SET TimeZone = 'UTC'")
        # Nobody has promised an order, and to keep one takes memory.
        con.execute("SET preserve_insertion_order = false")
        try:
            if source.file:
                file = source.file.replace("'", "''")
                query = f"FROM '{file}'"
            else:
                statements = con.extract_statements(source.sql)
                if not statements or statements[-1].type is not duckdb.StatementType.SELECT:
                    raise Usage("--sql returns no rows; expected a query, such as SELECT … FROM 'rows.parquet'")
                for statement in statements[:-1]:
                    con.execute(statement)
                query = bare(statements[-1].query)
            yield con.sql(query).to_arrow_reader(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException) as error:
            # Also while rows are read.
            sentence, _, more = str(error).strip().partition("\n")
            raise Refused(f"{source} cannot be read: {sentence}", quoted=more.strip()) from error


EXAMPLES = 3
"""Rows that an error's sentence names at most."""


def check(found: pa.Schema, table: Table, source: RowSource) -> None:
    """See that rows with these columns can be the table's.

    Raises:
        Refused: a column is missing, is none of the table's, or has a type that is not taken for the declared one; all
            of them are named.
    """
    declared = arrow_schema((*table.key, *table.values))
    if wrong := list(_differences(found, declared)):
        columns = ", ".join(f"{column.name} {column.type}" for column in (*table.key, *table.values))
        internal = any(is_internal(name) for name in declared.names if name not in found.names)
        raise Refused(
            f"{source} does not fit the table: {'; '.join(wrong)}",
            hint=f"the table has {columns}; {source.remedy} renames, casts and leaves out"
            + ("; columns that begin with _ are what mean, first and last go on from" if internal else ""),
        )


def fit(rows: pa.RecordBatch, table: Table, source: RowSource) -> pa.RecordBatch:
    """The rows with exactly the table's columns, key first; `check` has passed for their schema.

    Raises:
        Refused: a value is not one of the declared type, or a key is null; with examples.
    """
    schema = arrow_schema((*table.key, *table.values))
    columns = []
    for field in schema:
        values = rows.column(field.name)
        try:
            cast = values.cast(field.type)
            if pa.types.is_floating(field.type) and pa.types.is_floating(values.type):
                # Arrow makes infinity of a double for which a float has no room.
                lost = pc.and_(pc.is_inf(cast), pc.is_finite(values))
                if pc.any(lost).as_py():
                    raise pa.ArrowInvalid(f"{values.filter(lost)[0]} is too large")
            columns.append(cast)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Refused(
                f"column {field.name!r} of {source} has a value that is no {field.type}: {error}",
                hint=f"nothing was written; {source.remedy} casts or leaves out such values",
            ) from error
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    for name in (column.name for column in table.key):
        if nulls := fitting.column(name).null_count:
            some = fitting.filter(fitting.column(name).is_null()).slice(0, EXAMPLES)
            raise Refused(
                f"{source} has rows without a key: {name!r} is null in {nulls:,} of {fitting.num_rows:,} that were "
                f"looked at, such as {examples(some)}",
                hint=f"nothing was written; {source.remedy} leaves them out, with WHERE {name} IS NOT NULL",
            )
    return fitting


def examples(rows: pa.Table | pa.RecordBatch) -> str:
    """Rows for an error's sentence."""
    shown = (", ".join(f"{name}={value!r}" for name, value in row.items()) for row in python_rows(rows))
    return "; ".join(f"({row})" for row in shown)


def _differences(found: pa.Schema, declared: pa.Schema) -> Iterator[str]:
    for name in declared.names:
        if name not in found.names:
            near = nearest(name, found.names).removeprefix("; ")
            yield f"it has no column {name!r}{f' ({near})' if near else ''}"
        elif found.names.count(name) > 1:
            yield f"it has several columns {name!r}"
    extra = (name for name in dict.fromkeys(found.names) if name not in declared.names)
    yield from (f"its column {name!r} is none of the table's" for name in extra)
    for field in declared:
        if found.names.count(field.name) == 1 and not taken(found.field(field.name).type, field.type):
            yield f"its column {field.name!r} is {found.field(field.name).type}, where the table has {field.type}"


def taken(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of one type are taken for another, as far as that holds them."""
    of = pa.types
    if of.is_null(found):
        return True
    if of.is_struct(declared):
        if not of.is_struct(found) or [each.name for each in found] != [each.name for each in declared]:
            return False
        return all(taken(mine.type, its.type) for mine, its in zip(found, declared, strict=True))
    if of.is_map(declared):
        inner = ((found.key_type, declared.key_type), (found.item_type, declared.item_type)) if of.is_map(found) else ()
        return bool(inner) and all(taken(mine, its) for mine, its in inner)
    if of.is_list(declared):
        is_list = of.is_list(found) or of.is_large_list(found) or of.is_fixed_size_list(found)
        return is_list and taken(found.value_type, declared.value_type)
    if of.is_integer(declared) or of.is_floating(declared):
        return bool(of.is_integer(found) or of.is_floating(found) or of.is_decimal(found))
    if of.is_decimal(declared):
        # From a double, digits would be made up.
        return bool(of.is_integer(found) or of.is_decimal(found))
    if of.is_timestamp(declared):
        return bool(of.is_timestamp(found)) and (found.tz is None) == (declared.tz is None)
    try:
        return from_arrow(found) == from_arrow(declared)
    except Usage:
        return False
