"""A table at one version, as a DuckDB view over its SSTs: the newest row of each key, without deleted ones.

Merge on read, by position: which rows of an SST are hidden (`visible_rows`) is known before the view is made. So a
query is a scan of the columns that it asks for and one bit a row; no key, hash or version is read, and nothing is
joined.

SSTs that the cache has mapped are read from there, with the bit as a column beside theirs: nothing is decoded, which on
1 M rows takes less time than the same rows as one Parquet file. Of the others DuckDB reads the Parquet files, and the
bits are a variable of the connection.

SSTs of the same columns are one scan. What was renamed, widened or added since is said in the SELECT over it, as
`sst.evolution` reads it; of a table that was never migrated, and of SSTs of today's columns, the SELECT is plain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, groupby
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from ...errors import Usage
from ..objects.protocol import ObjectStore
from ..sst.evolution import Reading
from ..sst.ttl import may_have_expired
from ..sst.types import EXPIRES, OP, sst_schema, visible_columns
from ..versions.manifest import Manifest, Sst, Table
from .cache import SstCache
from .cache_folder import Mapped
from .decode import check_shape
from .fetch import corrupt, file_name
from .visible_rows import hidden_rows

_BITMAP_ROWS = 1 << 30
"""SSTs that begin within so many rows share a bitmap: DuckDB numbers its bits by 32-bit integers."""
_BATCH_ROWS = 1 << 16
"""Rows of a mapped SST that one thread of DuckDB takes at once."""
_NO_CURSOR = "a cursor does not see which rows count: ask the connection itself"
"""Variables are a connection's own. DuckDB tests for one when it plans, so that rows do not."""
_MAX_SCHEMAS = 10_000

_schemas: LRUCache[str, pa.Schema] = LRUCache(_MAX_SCHEMAS)
"""Columns by the name of the SST's file: they never change."""


def register(
    con: duckdb.DuckDBPyConnection,
    name: str,
    store: ObjectStore,
    cache: SstCache,
    manifest: Manifest,
    *,
    clock_ms: int | None = None,
    internal: bool = False,
) -> frozenset[Path]:
    """Make the manifest's table a view `name` of the connection, in the place of one of the same name.

    Its columns are the key and value columns, without those whose names start with `_` unless `internal`. Rows that
    expire at `clock_ms` or before are not shown; default the manifest's own clock. The connection, of a database in
    memory, needs no extension that DuckDB does not bring along. The cache holds local copies of a remote store's SSTs,
    and must stay open while the view is queried. Returns the files that it reads, each one of `cache.sql_path`.

    Raises `Usage` where the stage keeps no table.
    """
    table = manifest.table
    if table is None:
        raise Usage(f"stage {manifest.stage!r} keeps no state, so there is no table to query")
    columns = [column.name for column in (table.columns if internal else visible_columns(table))]
    if not manifest.ssts:
        con.from_arrow(sst_schema(table).empty_table().select(columns)).create_view(name)
        return frozenset()
    showable = (sst for sst in manifest.ssts if not sst.unshowable)
    mapped = {sst: rows for sst in showable if (rows := cache.peek(sst, table)) is not None}
    paths = {sst.object: cache.sql_path(store, sst) for sst in manifest.ssts if sst not in mapped}
    hidden = hidden_rows(store, cache, manifest.ssts, table)
    clock_ms = manifest.clock_ms if clock_ms is None else clock_ms
    alive = f"({EXPIRES} IS NULL OR {EXPIRES} > {clock_ms})"
    parts: list[duckdb.DuckDBPyRelation] = []
    selects: list[str] = []
    # An expired row is left out only when its SST is read: it still hides those before it.
    for letter, expires, condition in (("a", False, "true"), ("b", True, alive)):
        ssts = [sst for sst in manifest.ssts if may_have_expired(sst, clock_ms) == expires]
        parts += _mapped_rows(
            con, [(mapped[sst], hidden.get(sst)) for sst in ssts if sst in mapped], columns, condition
        )
        filed = [sst for sst in ssts if sst not in mapped]
        for number, group in enumerate(alike(filed, paths, table)):
            selects += _newest_rows(
                con,
                f"{name}_{letter}{number}",
                group.select(con, columns),
                [(filed[place], paths[filed[place].object]) for place in group.places],
                hidden,
                # Some may be from before the table got a ttl, and lack the column.
                by_name=table.ttl is not None,
                condition=condition,
            )
    if selects:
        parts.append(con.sql(" UNION ALL ".join(selects)))
    reduce(duckdb.DuckDBPyRelation.union, parts).create_view(name)
    return frozenset(paths.values())


def _mapped_rows(
    con: duckdb.DuckDBPyConnection,
    rows: Sequence[tuple[Mapped, npt.NDArray[np.int64] | None]],
    columns: Sequence[str],
    condition: str,
) -> Iterator[duckdb.DuckDBPyRelation]:
    """The rows that count of mapped SSTs, each with the positions of those that do not, as few relations."""
    groups: dict[tuple[object, ...], list[tuple[Mapped, npt.NDArray[np.int64] | None]]] = {}
    for one, hidden in rows:
        fields = tuple((field.name, field.type, field.nullable) for field in one.stored.schema)
        groups.setdefault((id(one.reading), hidden is None, fields), []).append((one, hidden))
    for (_, all_count, _), some in groups.items():
        batches: list[pa.RecordBatch] = []
        for one, hidden in some:
            table = one.stored
            if hidden is not None:
                # In the place of `_op`, which no query asks for: whether a row is hidden.
                is_hidden = np.zeros(table.num_rows, np.bool_)
                is_hidden[hidden] = True
                table = table.set_column(table.schema.get_field_index(OP), OP, pa.array(is_hidden))
            # Each thread takes a batch at a time.
            batches += table.to_batches(max_chunksize=_BATCH_ROWS)
        relation = con.from_arrow(pa.Table.from_batches(batches))
        like = Alike((), some[0][0].reading, EXPIRES in some[0][0].stored.schema.names)
        yield relation.filter(condition if all_count else f"NOT {OP} AND {condition}").project(
            like.select(con, columns)
        )


def _newest_rows(
    con: duckdb.DuckDBPyConnection,
    name: str,
    selected: str,
    ssts: Sequence[tuple[Sst, Path]],
    hidden: Mapping[Sst, npt.NDArray[np.int64]],
    *,
    by_name: bool,
    condition: str,
) -> Iterator[str]:
    """The SELECTs of the view for some SSTs and their files; sets the variables that they need."""
    all_count = [path for sst, path in ssts if sst not in hidden]
    if all_count:
        yield f"SELECT {selected} FROM {from_files(all_count, by_name=by_name)} WHERE {condition}"
    others = [(sst, path) for sst, path in ssts if sst in hidden]
    before = accumulate((sst.rows for sst, _ in others), initial=0)
    for number, some in groupby(zip(others, before, strict=False), key=lambda each: each[1] // _BITMAP_ROWS):
        chunk = [each for each, _ in some]
        ends = np.cumsum([sst.rows for sst, _ in chunk])
        starts = (ends - [sst.rows for sst, _ in chunk]).tolist()
        bits = np.zeros(int(ends[-1]), np.bool_)
        for (sst, _), start in zip(chunk, starts, strict=True):
            bits[start + hidden[sst]] = True
        variable = f"_hidden_{number}_{name}"
        con.execute(f"SET VARIABLE {quoted(variable)} = $bits::BLOB::BIT", {"bits": np.packbits(bits).tobytes()})
        position = f"(file_row_number + {starts}[file_index::BIGINT + 1])::INTEGER"
        yield (
            f"SELECT {selected} FROM {from_files([path for _, path in chunk], by_name=by_name)}"
            f" WHERE CASE WHEN getvariable({literal(variable)}) IS NULL THEN error({literal(_NO_CURSOR)})"
            f" ELSE get_bit(getvariable({literal(variable)}), {position}) = 0 END AND {condition}"
        )


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
        return ", ".join(self._expression(con, name) for name in names)

    def _expression(self, con: duckdb.DuckDBPyConnection, name: str) -> str:
        source = self.reading.sources.get(name) if self.reading is not None else None
        if source is None:
            return f"NULL::BIGINT AS {EXPIRES}" if name == EXPIRES and self.expires is False else quoted(name)
        if source.name is not None and source.stored == source.type:
            return f"{quoted(source.name)} AS {quoted(name)}"
        if source.name is not None:
            value = quoted(source.name)
        else:
            value = literal(str(source.default.cast(pa.string()).as_py())) if source.default.is_valid else "NULL"
        kind = con.from_arrow(pa.schema([("kind", source.type)]).empty_table()).types[0]
        return f"CAST({value} AS {kind}) AS {quoted(name)}"


def alike(ssts: Sequence[Sst], paths: Mapping[str, Path], table: Table) -> tuple[Alike, ...]:
    """The SSTs by their columns, each group in their order; `paths` has their files by the object's key.

    Looks into no file of a table that was never migrated. Raises `Corruption` for columns that the table never had.
    """
    if not table.schema:
        return (Alike(tuple(range(len(ssts)))),) if ssts else ()
    found: dict[tuple[int, bool], tuple[Reading | None, list[int]]] = {}
    for place, sst in enumerate(ssts):
        name = file_name(sst)
        if name not in _schemas:
            try:
                _schemas[name] = pq.read_schema(paths[sst.object])
            except (pa.ArrowException, OSError) as error:
                raise corrupt(sst, f"it cannot be decoded ({error})") from error
        schema = _schemas[name]
        how = check_shape(sst, table, schema, sst.rows)
        found.setdefault((id(how), EXPIRES in schema.names), (how, []))[1].append(place)
    return tuple(Alike(tuple(places), how, expires) for (_, expires), (how, places) in found.items())


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
