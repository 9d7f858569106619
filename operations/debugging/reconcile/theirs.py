"""External rows: a file, a query, a URL, rows in memory, or a table of an app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from ....errors import NotFound
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.resolve import report_if_collected
from ....snapshot.query.row_source import RowSource, open_rows
from ....snapshot.query.sql import connect, is_statement
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.duckdb_view import quote_identifier

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_TABLE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w-]*(@.*)?")
_BATCH_ROWS = 1 << 17


def names_table(text: str) -> bool:
    """Return True if a text names a table of an app (`APP/TABLE` or `APP/TABLE@MOMENT`) and is not an existing file."""
    return bool(_TABLE.fullmatch(text)) and not Path(text).exists()


def source_of(text: str) -> RowSource:
    """Return the source that a text names: a file, a pattern of files, a URL, or a query."""
    if Path(text).exists() or _URL.match(text) or not is_statement(text):
        return RowSource(text)
    return RowSource(sql=text)


@dataclass(frozen=True, slots=True)
class AppTable:
    """A table of an app at a moment."""

    store: ObjectStore
    cache: SstCache
    cut: Cut
    table: str
    ref: str
    """The ref as the user typed it."""

    def __str__(self) -> str:
        return self.ref


Theirs: TypeAlias = pa.Table | RowSource | AppTable


@contextmanager
def open_theirs(theirs: Theirs) -> Iterator[pa.RecordBatchReader]:
    """Open the external rows as a reader of batches. The reader can be consumed once.

    A query runs in a DuckDB that can neither write nor install extensions. Raises `NotFound` (no such table), `Usage`
    (the query does more than read) and `Refused` (the source cannot be read).
    """
    if isinstance(theirs, pa.Table):
        yield theirs.to_reader(_BATCH_ROWS)
        return
    if isinstance(theirs, RowSource):
        with open_rows(theirs, only_reads=True) as reader:
            yield reader
        return
    cut, table = theirs.cut, theirs.table
    if table not in cut.tables:
        raise NotFound(f"table at {cut.ref}", table, cut.tables)
    with report_if_collected(theirs.store, cut), closing(connect(theirs.store, theirs.cache, cut, only={table})) as con:
        yield con.sql(f"FROM {quote_identifier(table)}").to_arrow_reader(_BATCH_ROWS)


def describe_theirs(theirs: Theirs) -> str:
    """Return the name of the external rows for messages. A URL is shown without its password and signature."""
    if isinstance(theirs, pa.Table):
        return "the given rows"
    text = str(theirs)
    if not _URL.match(text):
        return text
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
