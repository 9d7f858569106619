"""DuckDB views of a table at one or several versions: the newest row of each key, without deleted keys.

Merge-on-read by position: the hidden rows of each SST (`visible_rows`) are computed before the view is created. So a
query scans only its selected columns, and one bit for each row. It reads no keys, hashes or versions, and needs no
join.

SSTs that the cache has mapped are scanned in place, with the bit as an extra column: nothing is decoded, and 1 M rows
take less time than one Parquet file of these rows. Other SSTs are scanned as Parquet files, with the bits in a variable
of the connection.

SSTs with equal columns are one scan. Renamed, widened and added columns are converted in its SELECT, as by
`sst.schema`; tables that were never migrated, and SSTs with the current columns, need no conversion.

In a view of several versions, each row of an SST comes with the versions that show it. An SST belongs to many versions,
and from one version to the next, newer rows hide only a few of its rows. So an SST's file is scanned once, regardless
of the number of versions. Only rows that some version hides are listed, with the range of versions that show the row.
All other rows have the range of versions of their SST.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from ..sst.schema import EXPIRES, OP, SEQ, ColumnConversion, sst_schema, visible_columns
from ..sst.sorted_runs import newer_than
from ..sst.ttl import has_expired_rows
from ..versions.entries.ssts import Sst
from ..versions.manifest import Manifest, Table
from .cache import SstCache
from .cache_folder import MappedSst
from .decode import check_columns
from .fetch import corruption_error, file_name
from .visible_rows import HiddenRowFinder, find_hidden_rows

_BITMAP_ROWS = 1 << 30
"""Maximum total of rows in SSTs that share a bitmap: DuckDB indexes bits by 32-bit integers."""
_BATCH_ROWS = 1 << 16
_NO_CURSOR = "a cursor cannot query this view: use the connection itself"
_MAX_SCHEMAS = 10_000

_schemas: LRUCache[str, pa.Schema] = LRUCache(_MAX_SCHEMAS)


def register_table(
    con: duckdb.DuckDBPyConnection,
    name: str,
    store: ObjectStore,
    cache: SstCache,
    manifest: Manifest,
    *,
    clock_ms: int | None = None,
    internal: bool = False,
) -> frozenset[Path]:
    """Create or replace a DuckDB view `name` of the manifest's table in the connection.

    The view has the key and value columns; with `internal`, also internal columns. Rows that expire at `clock_ms` or
    before are hidden; None uses the manifest's own clock. `con` is a connection to a database in memory, and needs no
    DuckDB extension. The cache holds local copies of a remote store's SSTs, and must stay open while the view is
    queried. Returns the files that the view reads, each from `cache.sql_path`. Raises `Usage` if the stage has no
    table.
    """
    table = manifest.table
    if table is None:
        raise Usage(f"stage {manifest.stage!r} keeps no state, so there is no table to query")
    columns = [column.name for column in (table.columns if internal else visible_columns(table))]
    if not manifest.ssts:
        con.from_arrow(sst_schema(table).empty_table().select(columns)).create_view(name)
        return frozenset()
    mapped = {
        sst: rows for sst in manifest.ssts if not sst.unshowable and (rows := cache.cached_rows(sst, table)) is not None
    }
    paths = {sst.object: cache.sql_path(store, sst) for sst in manifest.ssts if sst not in mapped}
    hidden = find_hidden_rows(store, cache, manifest.ssts, table)
    clock_ms = manifest.clock_ms if clock_ms is None else clock_ms
    unexpired = f"({EXPIRES} IS NULL OR {EXPIRES} > {clock_ms})"
    parts: list[duckdb.DuckDBPyRelation] = []
    selects: list[str] = []
    # Expired rows are filtered only when their SST is read, because they still hide older rows.
    for prefix, expires, condition in (("a", False, "true"), ("b", True, unexpired)):
        ssts = [sst for sst in manifest.ssts if has_expired_rows(sst, clock_ms) == expires]
        parts += _mapped_rows(
            con, [(mapped[sst], hidden.get(sst)) for sst in ssts if sst in mapped], columns, condition
        )
        unmapped = [sst for sst in ssts if sst not in mapped]
        for number, group in enumerate(group_by_columns(unmapped, paths, table)):
            selects += _newest_rows(
                con,
                f"{name}_{prefix}{number}",
                group.select(con, columns),
                [(unmapped[position], paths[unmapped[position].object]) for position in group.positions],
                hidden,
                # SSTs from before the table got a ttl lack the column.
                by_name=table.ttl is not None,
                condition=condition,
            )
    if selects:
        parts.append(con.sql(" UNION ALL ".join(selects)))
    reduce(duckdb.DuckDBPyRelation.union, parts).create_view(name)
    return frozenset(paths.values())


def _mapped_rows(
    con: duckdb.DuckDBPyConnection,
    rows: Sequence[tuple[MappedSst, npt.NDArray[np.int64] | None]],
    columns: Sequence[str],
    condition: str,
) -> Iterator[duckdb.DuckDBPyRelation]:
    groups: dict[tuple[object, ...], list[tuple[MappedSst, npt.NDArray[np.int64] | None]]] = {}
    for mapped, hidden in rows:
        fields = tuple((field.name, field.type, field.nullable) for field in mapped.stored.schema)
        groups.setdefault((id(mapped.conversion), hidden is None, fields), []).append((mapped, hidden))
    for (_, all_visible, _), group in groups.items():
        batches: list[pa.RecordBatch] = []
        for mapped, hidden in group:
            table = mapped.stored
            if hidden is not None:
                # Reuse the column `_op`, which no query selects, for the flag of hidden rows.
                is_hidden = np.zeros(table.num_rows, np.bool_)
                is_hidden[hidden] = True
                table = table.set_column(table.schema.get_field_index(OP), OP, pa.array(is_hidden))
            # DuckDB's threads each process one batch at a time.
            batches += table.to_batches(max_chunksize=_BATCH_ROWS)
        relation = con.from_arrow(pa.Table.from_batches(batches))
        layout = SstGroup((), group[0][0].conversion, EXPIRES in group[0][0].stored.schema.names)
        yield relation.filter(condition if all_visible else f"NOT {OP} AND {condition}").project(
            layout.select(con, columns)
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
    all_visible = [path for sst, path in ssts if sst not in hidden]
    if all_visible:
        yield f"SELECT {selected} FROM {from_clause(all_visible, by_name=by_name)} WHERE {condition}"
    partly_hidden = [(sst, path) for sst, path in ssts if sst in hidden]
    offsets = accumulate((sst.rows for sst, _ in partly_hidden), initial=0)
    for number, group in groupby(zip(partly_hidden, offsets, strict=False), key=lambda item: item[1] // _BITMAP_ROWS):
        chunk = [item for item, _ in group]
        ends = np.cumsum([sst.rows for sst, _ in chunk])
        starts = (ends - [sst.rows for sst, _ in chunk]).tolist()
        bits = np.zeros(int(ends[-1]), np.bool_)
        for (sst, _), start in zip(chunk, starts, strict=True):
            bits[start + hidden[sst]] = True
        variable = f"_hidden_{number}_{name}"
        con.execute(
            f"SET VARIABLE {quote_identifier(variable)} = $bits::BLOB::BIT", {"bits": np.packbits(bits).tobytes()}
        )
        position = f"(file_row_number + {starts}[file_index::BIGINT + 1])::INTEGER"
        yield (
            f"SELECT {selected} FROM {from_clause([path for _, path in chunk], by_name=by_name)}"
            f" WHERE CASE WHEN getvariable({quote_literal(variable)}) IS NULL THEN error({quote_literal(_NO_CURSOR)})"
            f" ELSE get_bit(getvariable({quote_literal(variable)}), {position}) = 0 END AND {condition}"
        )


@dataclass(frozen=True, slots=True)
class SstGroup:
    """SSTs with equal columns, which one query scans."""

    positions: tuple[int, ...]
    conversion: ColumnConversion | None = None
    expires: bool | None = None
    """True if the SSTs have `_expires_at`, False if they lack it, None if some may have it."""

    def select(self, con: duckdb.DuckDBPyConnection, names: Sequence[str]) -> str:
        return ", ".join(self._expression(con, name) for name in names)

    def _expression(self, con: duckdb.DuckDBPyConnection, name: str) -> str:
        source = self.conversion.sources.get(name) if self.conversion is not None else None
        if source is None:
            return f"NULL::BIGINT AS {EXPIRES}" if name == EXPIRES and self.expires is False else quote_identifier(name)
        if source.name is not None and source.stored_type == source.type:
            return f"{quote_identifier(source.name)} AS {quote_identifier(name)}"
        if source.name is not None:
            value = quote_identifier(source.name)
        else:
            value = quote_literal(str(source.default.cast(pa.string()).as_py())) if source.default.is_valid else "NULL"
        kind = con.from_arrow(pa.schema([("kind", source.type)]).empty_table()).types[0]
        return f"CAST({value} AS {kind}) AS {quote_identifier(name)}"


def group_by_columns(ssts: Sequence[Sst], paths: Mapping[str, Path], table: Table) -> tuple[SstGroup, ...]:
    """Group SSTs by their columns, in order. `paths` has their local files by object key.

    Opens no file if the table was never migrated. Raises `Corruption` for columns that the table never had.
    """
    if not table.schema:
        return (SstGroup(tuple(range(len(ssts)))),) if ssts else ()
    groups: dict[tuple[int, bool], tuple[ColumnConversion | None, list[int]]] = {}
    for position, sst in enumerate(ssts):
        name = file_name(sst)
        if name not in _schemas:
            try:
                _schemas[name] = pq.read_schema(paths[sst.object])
            except (pa.ArrowException, OSError) as error:
                raise corruption_error(sst, f"it cannot be decoded ({error})") from error
        schema = _schemas[name]
        reading = check_columns(sst, table, schema, sst.rows)
        groups.setdefault((id(reading), EXPIRES in schema.names), (reading, []))[1].append(position)
    return tuple(SstGroup(tuple(positions), reading, expires) for (_, expires), (reading, positions) in groups.items())


def from_clause(paths: Iterable[Path], *, by_name: bool, filename: bool = False) -> str:
    """Return a FROM clause over Parquet files. `by_name` permits missing columns; `filename` adds a path column."""
    files = ", ".join(quote_literal(str(path)) for path in paths)
    # A folder named a=b must not become a column.
    options = f"{', union_by_name = true' if by_name else ''}{', filename = true' if filename else ''}"
    return f"read_parquet([{files}], hive_partitioning = false{options})"


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Row numbers; and the first and last version that show each row, as positions (last < first for none)."""


@dataclass(slots=True)
class _SstLifespan:
    """Consecutive versions that have an SST, and the SSTs that may hide its rows. Versions count from 0."""

    sst: Sst
    first: int
    last: int
    changes: list[tuple[int, list[Sst], list[Sst]]] = field(default_factory=list)


def register_versions(
    con: duckdb.DuckDBPyConnection, name: str, store: ObjectStore, cache: SstCache, manifests: Sequence[Manifest]
) -> frozenset[Path]:
    """Create a temporary DuckDB view `name` of a table at several versions.

    The view has the key and value columns, `_version` and `_committed_at`. `manifests` are versions of one stage,
    ascending; at least one has an SST. Rows expire in each version by the version's own clock. The connection needs no
    DuckDB extension. The cache holds local copies of a remote store's SSTs, and must stay open while the view is
    queried. Returns the files that the view reads, each from `cache.sql_path`. Raises `Usage` if the stage has no
    table.
    """
    table = manifests[-1].table
    if table is None:
        raise Usage(f"stage {manifests[-1].stage!r} keeps no state, so there is no table to query")
    stays = _sst_lifespans([manifest.ssts for manifest in manifests])
    versions = {
        "place": np.arange(len(manifests)),
        "_version": [manifest.version for manifest in manifests],
        "_committed_at": pa.array([manifest.time_ms * 1_000 for manifest in manifests], pa.timestamp("us", "UTC")),
        "clock_ms": [manifest.clock_ms for manifest in manifests],
    }
    spans = {
        "file_index": np.arange(len(stays)),
        "first": [stay.first for stay in stays],
        "last": [stay.last for stay in stays],
    }
    con.register(f"{name} versions", pa.table(versions))
    con.register(f"{name} stays", pa.table(spans))
    con.register(f"{name} spans", _visible_spans(store, cache, stays, table))
    columns = [column.name for column in visible_columns(table)]
    expires = any(has_expired_rows(stay.sst, manifests[stay.last].clock_ms) for stay in stays)
    scanned = [*columns, *([EXPIRES] if expires else [])]
    shown = ", ".join(f"seen.{quote_identifier(column)}" for column in columns)
    # SSTs from before the table got a ttl lack the column.
    by_name = expires or table.ttl is not None
    paths = {stay.sst.object: cache.sql_path(store, stay.sst) for stay in stays}
    rows = " UNION ALL ".join(
        f"SELECT {group.select(con, scanned)}, {list(group.positions)}[file_index::BIGINT + 1] AS file_index, "
        f"file_row_number FROM {from_clause([paths[stays[i].sst.object] for i in group.positions], by_name=by_name)}"
        for group in group_by_columns([stay.sst for stay in stays], paths, table)
    )
    # No table column has a reserved name.
    seen = (
        f"SELECT stored.*, "
        f"unnest(range(coalesce(span.first, stay.first), coalesce(span.last, stay.last) + 1)) AS {SEQ} "
        f"FROM ({rows}) stored JOIN {quote_identifier(f'{name} stays')} stay USING (file_index) "
        f"LEFT JOIN {quote_identifier(f'{name} spans')} span USING (file_index, file_row_number)"
    )
    unexpired = f" WHERE seen.{EXPIRES} IS NULL OR seen.{EXPIRES} > version.clock_ms" if expires else ""
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW {quote_identifier(name)} AS SELECT {shown}, version._version, "
        f"version._committed_at "
        f"FROM ({seen}) seen JOIN {quote_identifier(f'{name} versions')} version ON version.place = "
        f"seen.{SEQ}{unexpired}"
    )
    return frozenset(paths.values())


def _sst_lifespans(versions: Sequence[Sequence[Sst]]) -> list[_SstLifespan]:
    stays: list[_SstLifespan] = []
    open_stays: dict[Sst, _SstLifespan] = {}
    for position, ssts in enumerate(versions):
        current = dict.fromkeys(ssts)
        added = [sst for sst in current if sst not in open_stays]
        removed = [sst for sst in open_stays if sst not in current]
        for sst in removed:
            del open_stays[sst]
        for sst, stay in open_stays.items():
            stay.last = position
            hiding, unhiding = newer_than(sst, added), newer_than(sst, removed)
            if hiding or unhiding:
                stay.changes.append((position, hiding, unhiding))
        for sst in added:
            open_stays[sst] = _SstLifespan(sst, position, position, [(position, newer_than(sst, current), [])])
            stays.append(open_stays[sst])
    return stays


def _visible_spans(store: ObjectStore, cache: SstCache, stays: Sequence[_SstLifespan], table: Table) -> pa.Table:
    columns: list[list[npt.NDArray[np.int64]]] = [[], [], [], []]
    hiding = HiddenRowFinder(store, cache, table)
    for number, stay in enumerate(stays):
        newer = dict.fromkeys(sst for _, entered, _ in stay.changes for sst in entered)
        hidden = hiding.find_hidden(stay.sst, list(newer))
        if any(positions.size for positions in hidden.values()):
            for rows, first, last in _row_spans(stay, hidden):
                for column, part in zip(columns, (np.full(rows.size, number), rows, first, last), strict=True):
                    column.append(part)
    names = ("file_index", "file_row_number", "first", "last")
    return pa.table([np.concatenate([np.empty(0, np.int64), *parts]) for parts in columns], [*names])


def _row_spans(stay: _SstLifespan, hidden: dict[Sst | None, npt.NDArray[np.int64]]) -> Iterator[_Spans]:
    # Number of SSTs that hide each row, and the position since which the row has been visible; -1 while it is hidden.
    hiding, since = np.zeros(stay.sst.rows, np.int32), np.full(stay.sst.rows, stay.first, np.int64)
    changed = np.zeros(stay.sst.rows, np.bool_)
    for position, added, removed in stay.changes:
        always = [None] if position == stay.first and None in hidden else []
        touched = [np.empty(0, np.int64)]
        for ssts, step in ((removed, -1), ([*always, *added], 1)):
            for sst in ssts:
                hiding[hidden[sst]] += step
                touched.append(hidden[sst])
        rows = np.unique(np.concatenate(touched))
        newly_hidden = rows[(hiding[rows] > 0) & (since[rows] >= 0)]
        if newly_hidden.size:
            yield newly_hidden, since[newly_hidden], np.full(newly_hidden.size, position - 1)
            since[newly_hidden], changed[newly_hidden] = -1, True
        since[rows[(hiding[rows] == 0) & (since[rows] < 0)]] = position
    until_the_last = np.flatnonzero(changed & (since >= 0))
    if until_the_last.size:
        yield until_the_last, since[until_the_last], np.full(until_the_last.size, stay.last)
