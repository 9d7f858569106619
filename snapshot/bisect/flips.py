"""Search for all versions at which a predicate turned bad or good, by one pass over the rows that the versions wrote.

The predicate must be row-local: a query that judges each row of one table independently of other rows. A wrong row
stays wrong until its key is written again, or until the row expires. So each row is judged once, for the version that
wrote it (`_seq`), and the number of wrong keys follows for every version. The cost is proportional to the rows written,
not to the size of the state. The result shows if the history turned from good to bad only once.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, Gone, NotFound, Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import from_clause, group_by_columns, quote_identifier
from ...store.sst.schema import EXPIRES, HASH, OP, SEQ, TOMBSTONE
from ...store.versions import history
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import as_main_table, find_owner
from ..query.columns import visible_schema
from ..query.sql import empty_database, sandboxed_database
from .between import SearchRange
from .predicate import Predicate, SqlPredicate
from .verdict import Flip, Flips

_AGGREGATES = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
ROW_NUMBER = "_slackwater_row"


def parse_row_local(sql: str, tables: Collection[str]) -> tuple[str, str]:
    """Return the table that a query reads, and the query rewritten to return row numbers (`ROW_NUMBER`).

    Raises `Refused` if the query judges a row by other rows as well, `NotFound` for an unknown table, and `Usage` for
    malformed SQL.
    """
    with duckdb.connect() as con:
        parsed = json.loads(con.execute("SELECT json_serialize_sql($sql::VARCHAR)", {"sql": sql}).fetchall()[0][0])
        if parsed["error"] or len(parsed["statements"]) != 1:
            raise Usage(f"the predicate is not a single query: {parsed.get('error_message', sql)}")
        node = parsed["statements"][0]["node"]
        aggregates = {name for (name,) in con.execute(_AGGREGATES).fetchall()} | {"count_star"}
        if reason := next(_non_local_parts(node, aggregates), ""):
            raise Refused(f"the query does not decide row by row: it has {reason}")
        name = node["from_table"]["table_name"].casefold()
        stage = next((stage for stage in tables if stage.casefold() == name), None)
        if stage is None:
            raise NotFound("table", node["from_table"]["table_name"], tables)
        node["modifiers"] = []
        number = con.execute(f"SELECT json_serialize_sql('SELECT {ROW_NUMBER}')").fetchall()[0][0]
        node["select_list"] += json.loads(number)["statements"][0]["node"]["select_list"]
        tree = json.dumps(parsed)
        numbers: str = con.execute("SELECT json_deserialize_sql($tree::JSON)", {"tree": tree}).fetchall()[0][0]
    return stage, numbers


def matching_row_numbers(sql: str, stage: str, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Run a query that `parse_row_local` returned over these rows; return the distinct row numbers, ascending.

    `rows` has the columns of the table and `ROW_NUMBER`. Raises `Usage` (DuckDB cannot run the query).
    """
    with sandboxed_database({stage: rows}) as con:
        try:
            numbers = con.sql(f"SELECT DISTINCT {ROW_NUMBER} FROM ({sql}) ORDER BY 1").to_arrow_table()
        except duckdb.Error as error:
            raise Usage(str(error).partition("\n")[0], quoted=f"query: {sql}") from error
    return np.asarray(numbers.column(0).to_numpy(), np.int64)


def _non_local_parts(node: dict[str, Any], aggregates: Collection[str]) -> Iterator[str]:
    if node["type"] != "SELECT_NODE":
        yield "a set operation"
        return
    source = node["from_table"]["type"]
    if source != "BASE_TABLE":
        yield {"JOIN": "a join", "SUBQUERY": "a subquery", "EMPTY": "no table"}.get(source, f"a {source.lower()}")
    named = {"GROUP BY": node["group_expressions"], "HAVING": node["having"], "QUALIFY": node["qualify"]}
    named |= {"a sample": node["sample"], "WITH": node["cte_map"]["map"]}
    yield from (name for name, is_used in named.items() if is_used)
    for modifier in node["modifiers"]:
        if modifier["type"] != "ORDER_MODIFIER":
            yield modifier["type"].partition("_")[0]
    yield from _non_local_expressions([node["select_list"], node["where_clause"]], aggregates)


def _non_local_expressions(node: Any, aggregates: Collection[str]) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("class") in ("WINDOW", "SUBQUERY"):
            yield "a window function" if node["class"] == "WINDOW" else "a subquery"
        elif node.get("class") == "FUNCTION" and node["function_name"] in aggregates:
            yield f"the aggregate {node['function_name'].removesuffix('_star')}"
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _non_local_expressions(child, aggregates)


_MAX_VERSIONS = 256
_MAX_BYTES = 64 << 20

_WRONG_KEY_DELTAS = f"""
    WITH lives AS (
        SELECT version, {{row}} IN (FROM _bad) AS bad, _expires,
            lead(version) OVER (PARTITION BY {HASH}, {{keys}} ORDER BY version, {SEQ}) AS overwritten
        FROM _written WHERE {HASH} IN (SELECT {HASH} FROM _written WHERE {{row}} IN (FROM _bad))
    ), ends AS (
        SELECT version, least(overwritten, if(gone < version, version, gone)) AS until
        FROM (FROM lives WHERE bad) ASOF LEFT JOIN _clocks ON _expires <= clock_ms
    )
    SELECT version, sum(delta)::BIGINT
    FROM (SELECT version, 1 AS delta FROM ends UNION ALL SELECT until, -1 FROM ends WHERE until IS NOT NULL)
    GROUP BY version ORDER BY version
"""
"""SQL query for the change in the number of wrong keys at each version.

A wrong row counts until its key is written again, or until the row expires.
"""


def scan_if_cheap(store: ObjectStore, cache: SstCache, predicate: Predicate, between: SearchRange) -> Flips | None:
    """Return all versions of a range at which a row-local predicate turned bad or good; None if a scan is too costly.

    Also returns None if the predicate is not row-local, if versions are missing, or if a version is a rewind. A scan is
    too costly if it would read more than 256 manifests or 64 MiB of SSTs. Raises `Unavailable`.
    """
    watched = between.watched & between.high.stages.keys()
    # With resource limits for untrusted users, only the evaluations themselves may run.
    if not isinstance(predicate, SqlPredicate) or predicate.bounds is not None or not between.is_gapless:
        return None
    if sum(map(between.num_versions, watched)) > _MAX_VERSIONS:
        return None
    try:
        return _scan(store, cache, predicate, between)
    except (Refused, Usage, NotFound, Gone, Corruption):
        # The predicate or the history does not support a scan: the search states its assumption instead.
        return None


def _scan(store: ObjectStore, cache: SstCache, predicate: Predicate, between: SearchRange) -> Flips | None:
    table, sql = parse_row_local(predicate.sql, between.high.tables)
    stage, high = find_owner(table, between.high.stages), between.high.tables[table]
    first = between.low_version(stage)
    if any(version.version > first for version in high.rewinds):
        return None
    read = (history.read(store, high.app, stage, version) for version in range(first + 1, high.version + 1))
    manifests = [as_main_table(manifest, table) for manifest in read]
    sources = [*_written_rows(manifests)]
    if stage in between.low.stages:
        low = as_main_table(between.low.stages[stage], table)
        manifests.insert(0, low)
        sources += (_WrittenRows(sst, first, None) for sst in low.ssts)
    sst_bytes = {source.sst.object: source.sst.bytes for source in sources}
    if sum(sst_bytes.values()) > _MAX_BYTES:
        return None
    if not sources:
        return Flips(stage, first, high.version, (), ((first, 0),), 0)
    paths = {source.sst.object: cache.sql_path(store, source.sst) for source in sources}
    with empty_database() as con:
        _create_views(con, table, high, sources, paths)
        try:
            con.execute(f"CREATE TEMP TABLE _bad AS SELECT {ROW_NUMBER} FROM ({sql})")
        except duckdb.Error as error:
            raise Usage(str(error).partition("\n")[0], quoted=f"query: {predicate.sql}") from error
        clocks = {manifest.clock_ms: manifest.version for manifest in reversed(manifests)}
        con.register("_clocks", pa.table({"clock_ms": [*clocks], "gone": [*clocks.values()]}))
        keys = ", ".join(quote_identifier(column.name) for column in high.table.key) if high.table else ""
        # Changes of the number of wrong keys, by ascending version.
        changes: dict[int, int] = dict(con.execute(_WRONG_KEY_DELTAS.format(keys=keys, row=ROW_NUMBER)).fetchall())
        rows: int = con.execute("SELECT count(*) FROM _written").fetchall()[0][0]
    later = {version: delta for version, delta in changes.items() if version > first}
    at_first = sum(changes.values()) - sum(later.values())
    counts = [*zip([first, *later], np.cumsum([at_first, *later.values()]).tolist(), strict=True)]
    times = {manifest.version: manifest.time_ms for manifest in manifests}
    flips = tuple(
        Flip(f"{high.app}/{stage}@v{version}", version, times[version], count > 0, count)
        for (_, previous_count), (version, count) in pairwise(counts)
        if (previous_count > 0) != (count > 0)
    )
    return Flips(stage, first, high.version, flips, tuple(counts), rows)


@dataclass(frozen=True, slots=True)
class _WrittenRows:
    """Rows of one SST that one version wrote."""

    sst: Sst
    version: int
    seq: int | None
    """`_seq` of the rows that the version wrote; None if the version wrote all rows of the SST."""


def _written_rows(manifests: Iterable[Manifest]) -> Iterator[_WrittenRows]:
    for manifest in manifests:
        if manifest.traits.changes_rows:
            seq = manifest.row_seq
            yield from (_WrittenRows(s, manifest.version, seq) for s in manifest.ssts if s.seq_min <= seq <= s.seq_max)


def _create_views(
    con: duckdb.DuckDBPyConnection,
    table: str,
    high: Manifest,
    sources: Sequence[_WrittenRows],
    paths: Mapping[str, Path],
) -> None:
    """Create two views: `_written` (rows with the versions that wrote them), and the table without tombstones.

    Rows that existed at the first version count as written by the first version. All rows get the columns of the
    version `high`.
    """
    assert high.table is not None  # noqa: S101  the predicate is over it
    schema = pa.schema([("path", pa.string()), ("version", pa.int64()), ("seq", pa.int64())])
    labels = [
        {"path": str(paths[source.sst.object]), "version": source.version, "seq": source.seq} for source in sources
    ]
    con.register("_labels", pa.Table.from_pylist(labels, schema=schema))
    files = sorted({str(path) for path in paths.values()})
    ssts = list({source.sst.object: source.sst for source in sources}.values())
    names = [HASH, *(column.name for column in high.table.columns), SEQ, OP]
    expires = any(sst.expiring for sst in ssts)
    rows = " UNION ALL ".join(
        f"SELECT {some.select(con, [*names, *([EXPIRES] if expires else [])])}, filename, file_row_number FROM "
        f"{from_clause([paths[ssts[place].object] for place in some.positions], by_name=True, filename=True)}"
        for some in group_by_columns(ssts, paths, high.table)
    )
    con.execute("SET allowed_paths = $files", {"files": files})
    con.execute("SET enable_external_access = false")
    con.execute(
        f"CREATE TEMP VIEW _written AS SELECT s.* EXCLUDE (filename), l.version,"
        f" {EXPIRES if expires else 'NULL::BIGINT'} AS _expires, hash(filename, file_row_number, l.version) AS "
        f"{ROW_NUMBER}"
        f" FROM ({rows}) s JOIN _labels l ON l.path = s.filename WHERE l.seq IS NULL OR l.seq = s.{SEQ}"
    )
    shown = ", ".join(map(quote_identifier, visible_schema(high.table).names))
    con.execute(
        f"CREATE TEMP VIEW {quote_identifier(table)} AS SELECT {shown}, {ROW_NUMBER} FROM _written WHERE {OP} <> "
        f"{TOMBSTONE}"
    )
