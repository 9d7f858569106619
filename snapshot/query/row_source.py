"""Rows to write into a table, from any source that DuckDB reads: a file, several files, or a query.

A value is converted if the target type can hold it in a different size or layout: an integer as a wider or narrower
integer, a decimal as a double. A number is not converted to text. A time without a zone is not converted to a time with
a zone, since the meaning is unclear. The user can cast in SQL.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...common.redact import replace_secrets, secrets_of_url
from ...common.validation import nearest_hint
from ...errors import Refused, Usage
from ...store.sst.arrow_types import from_arrow, python_rows
from ...store.sst.schema import arrow_schema
from ...store.versions.manifest import Table, is_internal
from .clauses import strip_comments
from .sql import empty_database, parse_reading_statement

_BATCH_ROWS = 1 << 17
"""Rows per batch: large enough that overhead is negligible, small enough that several batches fit in memory."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Source of rows: either a file or a query. Raises `Usage` if both or neither is given."""

    file: str = ""
    """Argument of DuckDB's `FROM 'file'`: a Parquet, CSV or JSON file, a pattern (`rows/*.parquet`) or a URL."""
    sql: str = ""
    """Query that returns the rows. Statements before it, such as `ATTACH`, are run first."""
    only_files: bool = False
    """True if the source must be a file. For an edit, the option `--sql` has a different meaning."""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.sql):
            raise Usage(
                f"rows come from {'both a file and --sql' if self.file else 'neither a file nor --sql'}; expected one",
                hint="name a file that DuckDB reads (Parquet, CSV, JSON), or give a query by --sql",
            )

    def __str__(self) -> str:
        return self.file or "the query"

    @property
    def suggested_sql(self) -> str:
        select = f"SELECT … FROM '{self.file or '…'}'"
        return (
            f"a file that DuckDB writes by COPY ({select}) TO 'new.parquet'" if self.only_files else f'--sql "{select}"'
        )


@contextmanager
def open_rows(source: RowSource, *, only_reads: bool = False) -> Iterator[pa.RecordBatchReader]:
    """Open the rows as a reader of batches. The reader can be consumed once.

    Times are in UTC unless the source names a zone. With `only_reads`, statements that write data or install an
    extension are refused; DuckDB loads the extensions that are installed. Raises `Refused` (DuckDB cannot read the
    source, or the source is not a table).
    """
    # Texts that may be a password or signature, from a URL or from a statement before the query.
    secrets = list(filter(None, secrets_of_url(source.file))) if "://" in source.file else []
    with closing(empty_database()) as con:
        con.execute("SET TimeZone = 'UTC'")
        # Preserving the order takes memory, and no order is promised.
        con.execute("SET preserve_insertion_order = false")
        if only_reads:
            con.execute("SET autoinstall_known_extensions = false")
        try:
            if source.file:
                file = source.file.replace("'", "''")
                query = f"FROM '{file}'"
            else:
                statements = con.extract_statements(source.sql)
                if not statements or statements[-1].type is not duckdb.StatementType.SELECT:
                    raise Usage("--sql returns no rows; expected a query, such as SELECT … FROM 'rows.parquet'")
                if only_reads:
                    _check_reads(con, statements)
                secrets += [text for statement in statements[:-1] for text in _TEXT.findall(statement.query)]
                for statement in statements[:-1]:
                    con.execute(statement)
                query = strip_comments(statements[-1].query)
            yield con.sql(query).to_arrow_reader(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException) as error:
            # Errors of the caller's reads inside of the context arrive here as well.
            text = replace_secrets(f"{source} cannot be read: {str(error).strip()}", secrets)
            sentence, _, more = text.partition("\n")
            raise Refused(sentence, quoted=more.strip()) from (None if any(secrets) else error)


_TEXT = re.compile(r"'((?:[^']|''){3,})'")
"""Pattern of text in a statement before the query that may contain a password, such as a database's address.

Messages never quote it.
"""
_PREPARES = re.compile(
    r"\s*(ATTACH\b.*\bREAD_ONLY\b|LOAD\b|SET\b|CREATE\s+(TEMPORARY\s+)?SECRET\b)", re.IGNORECASE | re.DOTALL
)
"""Statements that may precede a query that only reads."""


def _check_reads(con: duckdb.DuckDBPyConnection, statements: Sequence[duckdb.Statement]) -> None:
    for statement in statements[:-1]:
        if not _PREPARES.match(strip_comments(statement.query)):
            # Not quoted: it may have a password.
            raise Usage(
                "before the query, only ATTACH … (READ_ONLY), LOAD, SET and CREATE SECRET are allowed; found "
                f"{statement.type.name}",
                hint="a database is attached with READ_ONLY; an extension is installed once, by DuckDB itself: "
                """python -c "import duckdb; duckdb.sql('INSTALL postgres')\"""",
            )
    parse_reading_statement(con, statements[-1].query, hint="")


def fit_columns(
    rows: pa.Table, schema: pa.Schema, names: Mapping[str, str], *, noun: str, role: str, option: str
) -> pa.Table:
    """Return the columns of `schema` from a table whose columns may have other names and other types.

    Args:
        rows: Table to convert.
        schema: Columns of the result.
        names: Column of `rows`, by column of the result. A missing entry means an equal name.
        noun: Name of the rows in messages, such as `the labels`.
        role: Description of the columns in messages, such as `the key of 'carriers'`.
        option: Option that names a column, for the hint.

    Raises `Usage` (a column is missing, or its values do not fit).
    """
    columns = []
    for column in schema:
        name = names.get(column.name, column.name)
        if name not in rows.column_names:
            raise Usage(
                f"{noun} have no column {name!r} for {column.name} of {role}{nearest_hint(name, rows.column_names)}",
                hint=f"name the column that has it: {option} {column.name}=COLUMN",
            )
        values = rows.column(name)
        try:
            if not is_convertible(values.type, column.type):
                raise pa.ArrowInvalid(f"{values.type} is not converted")
            columns.append(values.cast(column.type))
        except pa.ArrowException as error:
            raise Usage(
                f"column {name!r} of {noun} is no {column.type}, as {column.name} of {role}: {error}",
                hint=f"cast it in SQL: SELECT * REPLACE (… AS {name}) FROM …",
            ) from error
    return pa.table(columns, schema=schema)


MAX_EXAMPLES = 3


def check_schema(actual: pa.Schema, table: Table, source: RowSource) -> None:
    """Check that rows with these columns fit the table.

    Raises:
        Refused: a column is missing, unknown, or of a type that cannot be converted; the message lists all of them.
    """
    declared = arrow_schema((*table.key, *table.values))
    if wrong := list(_schema_differences(actual, declared)):
        columns = ", ".join(f"{column.name} {column.type}" for column in (*table.key, *table.values))
        internal = any(is_internal(name) for name in declared.names if name not in actual.names)
        raise Refused(
            f"{source} does not fit the table: {'; '.join(wrong)}",
            hint=f"the table has {columns}; {source.suggested_sql} renames, casts and leaves out"
            + ("; columns that begin with _ hold the running state of mean, first and last" if internal else ""),
        )


def convert_rows(rows: pa.RecordBatch, table: Table, source: RowSource) -> pa.RecordBatch:
    """Return the rows with exactly the table's columns, key first. `rows` must have passed `check_schema`.

    Raises:
        Refused: a value does not fit its declared type, or a key is null; with examples.
    """
    schema = arrow_schema((*table.key, *table.values))
    columns = []
    for field in schema:
        values = rows.column(field.name)
        try:
            cast = values.cast(field.type)
            if pa.types.is_floating(field.type) and pa.types.is_floating(values.type):
                # Arrow casts a double that is too large for a float to infinity.
                lost = pc.and_(pc.is_inf(cast), pc.is_finite(values))
                if pc.any(lost).as_py():
                    raise pa.ArrowInvalid(f"{values.filter(lost)[0]} is too large")
            columns.append(cast)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Refused(
                f"column {field.name!r} of {source} has a value that is not a valid {field.type}: {error}",
                hint=f"nothing was written; {source.suggested_sql} casts or leaves out such values",
            ) from error
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    for name in (column.name for column in table.key):
        if nulls := fitting.column(name).null_count:
            some = fitting.filter(fitting.column(name).is_null()).slice(0, MAX_EXAMPLES)
            raise Refused(
                f"{source} has rows without a key: {name!r} is null in {nulls:,} of {fitting.num_rows:,} "
                f"checked rows, such as {format_examples(some)}",
                hint=f"nothing was written; {source.suggested_sql} leaves them out, with WHERE {name} IS NOT NULL",
            )
    return fitting


def format_examples(rows: pa.Table | pa.RecordBatch) -> str:
    shown = (", ".join(f"{name}={value!r}" for name, value in row.items()) for row in python_rows(rows))
    return "; ".join(f"({row})" for row in shown)


def _schema_differences(actual: pa.Schema, declared: pa.Schema) -> Iterator[str]:
    for name in declared.names:
        if name not in actual.names:
            near = nearest_hint(name, actual.names).removeprefix("; ")
            yield f"it has no column {name!r}{f' ({near})' if near else ''}"
        elif actual.names.count(name) > 1:
            yield f"it has several columns {name!r}"
    extra = (name for name in dict.fromkeys(actual.names) if name not in declared.names)
    yield from (f"the table has no column {name!r}" for name in extra)
    for field in declared:
        if actual.names.count(field.name) == 1 and not is_convertible(actual.field(field.name).type, field.type):
            yield f"its column {field.name!r} is {actual.field(field.name).type}, but the table has {field.type}"


def is_convertible(actual: pa.DataType, declared: pa.DataType) -> bool:
    of = pa.types
    if of.is_null(actual):
        return True
    if of.is_nested(declared):
        return _is_nested_alike(actual, declared)
    if of.is_integer(declared) or of.is_floating(declared):
        return bool(of.is_integer(actual) or of.is_floating(actual) or of.is_decimal(actual))
    if of.is_decimal(declared):
        # A decimal that is made from a double would have invented digits.
        return bool(of.is_integer(actual) or of.is_decimal(actual))
    if of.is_timestamp(declared):
        return bool(of.is_timestamp(actual)) and (actual.tz is None) == (declared.tz is None)
    try:
        return from_arrow(actual) == from_arrow(declared)
    except Usage:
        return False


def _is_nested_alike(actual: pa.DataType, declared: pa.DataType) -> bool:
    of = pa.types
    if of.is_struct(declared):
        names = [field.name for field in declared]
        is_alike = of.is_struct(actual) and [field.name for field in actual] == names
        return is_alike and all(is_convertible(actual.field(name).type, declared.field(name).type) for name in names)
    if of.is_map(declared):
        is_alike = of.is_map(actual) and is_convertible(actual.key_type, declared.key_type)
        return is_alike and is_convertible(actual.item_type, declared.item_type)
    is_list = of.is_list(actual) or of.is_large_list(actual) or of.is_fixed_size_list(actual)
    return is_list and is_convertible(actual.value_type, declared.value_type)
