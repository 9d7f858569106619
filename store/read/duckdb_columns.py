"""SSTs as DuckDB scans them, also where they were written under other columns than the table has now.

Files of the same columns are one scan. What was renamed, widened or added since is said in the SELECT over it, as
`sst.evolution` reads it; of a table that was never migrated, and of SSTs of today's columns, the SELECT is plain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from ..sst.evolution import Reading, Source
from ..sst.types import EXPIRES
from ..versions.manifest import Sst, Table
from .decode import check_shape, corrupt, file_name

_MAX_SCHEMAS = 10_000

_schemas: LRUCache[str, pa.Schema] = LRUCache(_MAX_SCHEMAS)
"""Columns by the name of the SST's file: they never change."""


@dataclass(frozen=True, slots=True)
class Alike:
    """SSTs of the same columns."""

    places: tuple[int, ...]
    """Which ones, of those that were asked about."""
    reading: Reading | None = None
    """How they are read as the table's; None where they have its columns."""
    expires: bool | None = None
    """Whether they have `_expires_at`; None where some may and some may not."""

    def select(self, con: duckdb.DuckDBPyConnection, names: Sequence[str]) -> str:
        """The table's columns of these names, or an SST's own, as a list of SQL expressions."""
        how = self.reading.sources if self.reading is not None else {}
        return ", ".join(
            _expression(con, name, how[name])
            if name in how
            else f"NULL::BIGINT AS {EXPIRES}"
            if name == EXPIRES and self.expires is False
            else quoted(name)
            for name in names
        )


def alike(ssts: Sequence[Sst], paths: Mapping[str, Path], table: Table) -> tuple[Alike, ...]:
    """The SSTs by their columns, each group in their order; `paths` has their files by the object's key.

    Looks into no file of a table that was never migrated. Raises `Corruption` for columns that the table never had.
    """
    if not table.schema:
        return (Alike(tuple(range(len(ssts)))),) if ssts else ()
    found: dict[tuple[int, bool], tuple[Reading | None, list[int]]] = {}
    for place, sst in enumerate(ssts):
        schema = _schema_of(sst, paths[sst.object])
        how = check_shape(sst, table, schema, sst.rows)
        found.setdefault((id(how), EXPIRES in schema.names), (how, []))[1].append(place)
    return tuple(Alike(tuple(places), how, expires) for (_, expires), (how, places) in found.items())


def _schema_of(sst: Sst, path: Path) -> pa.Schema:
    name = file_name(sst)
    if name not in _schemas:
        try:
            _schemas[name] = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise corrupt(sst, f"it cannot be decoded ({error})") from error
    return _schemas[name]


def _expression(con: duckdb.DuckDBPyConnection, name: str, source: Source) -> str:
    kind = con.from_arrow(pa.schema([("kind", source.type)]).empty_table()).types[0]
    value = source.name and quoted(source.name)
    if value is None:
        value = "NULL" if not source.default.is_valid else literal(str(source.default.cast(pa.string()).as_py()))
    elif source.stored == source.type:
        return f"{value} AS {quoted(name)}"
    return f"CAST({value} AS {kind}) AS {quoted(name)}"


def from_files(paths: Iterable[Path], *, by_name: bool, filename: bool = False) -> str:
    """The rows of these files, for a FROM; `by_name` where some may lack a column, `filename` adds which it was."""
    files = ", ".join(literal(str(path)) for path in paths)
    # A folder named a=b is no column.
    options = f"{', union_by_name = true' if by_name else ''}{', filename = true' if filename else ''}"
    return f"read_parquet([{files}], hive_partitioning = false{options})"


def quoted(name: str) -> str:
    """A name of a table, column or variable as DuckDB's SQL takes any."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as DuckDB's SQL takes any."""
    return "'" + text.replace("'", "''") + "'"
