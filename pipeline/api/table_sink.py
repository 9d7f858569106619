"""Sinks that are tables of a lakehouse: Delta Lake and Apache Iceberg."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote

import pyarrow as pa

from ...common.arguments import check_arguments
from ...errors import NotFound, Refused, Usage
from ...store.versions.keys import check_name

TableFormat = Literal["delta", "iceberg"]

_HOST = re.compile(r"([^:@]+@)?[^:@]*(:\d+)?")
"""Host, bucket or container of a URL, without a password."""
_NOT_STORED = (pa.types.is_null, pa.types.is_duration, pa.types.is_interval, pa.types.is_time)


@dataclass(frozen=True, slots=True)
class TableSink:
    """Sink that publishes each version in one commit of a table."""

    name: str
    format: TableFormat
    address: str
    """Path or URL of a Delta table; `CATALOG.NAMESPACE.TABLE` of an Iceberg table."""
    key: tuple[str, ...] = ()
    """Key columns of an upsert; empty to append."""
    partition_by: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the store or catalog, which may be secret."""
    kind: ClassVar[Literal["table"]] = "table"
    encoding: ClassVar[None] = None
    on_error: ClassVar[Literal["stop", "reject"]] = "stop"


@check_arguments
def delta(
    path: str,
    *,
    key: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    name: str = "",
    options: Mapping[str, str] | None = None,
) -> TableSink:
    """Publish a stage's rows to a Delta table, exactly once, each version in one commit.

    A rewind of the app restores the table. Needs the extra `delta`.

    Args:
        path: Folder or URL of the table. The first rows create a table that does not exist; new columns are added.
        key: Key columns: a row replaces the row with an equal key. Default: rows are appended.
        partition_by: Columns that a new table is partitioned by.
        name: Name of the sink, which must not change; default the last part of the path.
        options: Storage options of delta-rs, such as credentials. They are not stored.

    Raises `Usage` for an invalid argument.
    """
    address = parse_address("delta(): path", "delta", path)
    return _sink("delta", address, address.rpartition("/")[2], name, key, partition_by, options)


@check_arguments
def iceberg(
    table: str,
    *,
    key: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    name: str = "",
    options: Mapping[str, str] | None = None,
) -> TableSink:
    """Publish a stage's rows to an Iceberg table of a catalog, exactly once, each version in one commit.

    A rewind of the app restores the table. Needs the extra `iceberg`.

    Args:
        table: `CATALOG.NAMESPACE.TABLE`; pyiceberg's configuration has the catalog's address. The first rows create a
            table that does not exist, in an existing namespace; new columns are added.
        key: Key columns: a row replaces the row with an equal key. Default: rows are appended.
        partition_by: Columns that a new table is partitioned by.
        name: Name of the sink, which must not change; default the last part of `table`.
        options: Properties of the catalog, such as credentials. They are not stored.

    Raises `Usage` for an invalid argument.
    """
    address = parse_address("iceberg(): table", "iceberg", table)
    return _sink("iceberg", address, address.rpartition(".")[2], name, key, partition_by, options)


def parse_address(owner: str, kind: TableFormat, text: str) -> str:
    """Return an address in its stored form: an absolute path, a URL, or a table of a catalog.

    Raises `Usage` for an invalid address, and for an address with a password or a query, which would be stored and
    shown.
    """
    if kind == "iceberg":
        parts = text.split(".")
        if len(parts) < 3 or not all(parts) or "/" in text:
            raise Usage(f"{owner} is {text.rpartition('@')[2]!r}; expected CATALOG.NAMESPACE.TABLE")
        return text
    scheme, is_url, rest = text.partition("://")
    host, _, path = rest.partition("/")
    scheme = scheme.lower()
    if not text.strip() or (is_url and ("?" in rest or not _HOST.fullmatch(host) or not rest.strip("/"))):
        wrong = "a URL with a password or a query" if rest.strip("/") else repr(text)
        raise Usage(
            f"{owner} is {wrong}; expected the table's folder or URL",
            hint="give credentials as options= or in the environment",
        )
    if not is_url:
        return _normal(str(Path(text).absolute()))
    if scheme == "file":
        if host not in ("", "localhost"):
            raise Usage(f"{owner} is a file on the host {host!r}; expected file:///FOLDER")
        return _normal(unquote(path))
    return f"{'s3' if scheme == 's3a' else scheme}://{host}{_normal(path)}".rstrip("/")


def _normal(path: str) -> str:
    # Links are kept, which may change while the table's address stays.
    return normpath(f"/{path.lstrip('/')}")


def _sink(
    kind: TableFormat,
    address: str,
    base: str,
    name: str,
    key: Sequence[str] | str | None,
    partition_by: Sequence[str] | str | None,
    options: Mapping[str, str] | None,
) -> TableSink:
    sink_name = check_name(f"{kind}()", name or base.lower().replace("_", "-"))
    keys, partition = ((value,) if isinstance(value, str) else tuple(value or ()) for value in (key, partition_by))
    for argument, names in (("key", keys), ("partition_by", partition)):
        if len(set(names)) != len(names):
            raise Usage(f"sink {sink_name!r}: {argument} is {names!r}; name each column once")
    return TableSink(sink_name, kind, address, keys, partition, tuple(sorted((options or {}).items())))


def check_table_rows(sink: TableSink, rows: pa.Schema) -> None:
    """Check that a table can store rows with these columns.

    Raises `NotFound` for a missing column of the declaration, and `Refused` for a column whose type does not fit.
    """
    owner = f"sink {sink.name!r}"
    for kind, names in (("key", sink.key), ("partition", sink.partition_by)):
        for name in names:
            if name not in rows.names:
                raise NotFound(f"{kind} column", name, rows.names, hint=f"{owner} has it as {kind} column")
    if sink.format == "delta" and not set(rows.names) - set(sink.partition_by):
        raise Refused(f"{owner}: all columns are partition columns; Delta tables need one that is none")
    for column in rows:
        if any(is_kind(kind) for kind in leaf_types(column.type) for is_kind in _NOT_STORED):
            raise Refused(
                f"{owner}: column {column.name!r} has the type {column.type}, which {sink.format} tables do not have",
                hint="cast it, for example to bigint",
            )
        if column.name in sink.key and (pa.types.is_floating(column.type) or pa.types.is_nested(column.type)):
            raise Refused(
                f"{owner}: key column {column.name!r} has the type {column.type}; expected text, integers, decimals or "
                "times",
                hint="use another key, or cast it to string",
            )
        is_bytes = pa.types.is_binary(column.type) and sink.format == "delta"
        if column.name in sink.partition_by and (pa.types.is_nested(column.type) or is_bytes):
            raise Refused(
                f"{owner}: partition column {column.name!r} has the type {column.type}, by which {sink.format} tables "
                "cannot be partitioned",
                hint="use another column, or cast it to string",
            )
        if column.name in sink.key and "`" in column.name and sink.format == "delta":
            raise Refused(
                f"{owner}: key column {column.name!r} has a backtick in its name, which the MERGE of Delta tables does "
                "not find",
                hint="rename the column",
            )


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the plain types within a column's type; a plain type itself."""
    if not kind.num_fields:
        yield kind
    for number in range(kind.num_fields):
        yield from leaf_types(kind.field(number).type)
