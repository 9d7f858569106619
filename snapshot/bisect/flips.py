"""All changes of a predicate that looks at one row at a time: one pass over the rows that versions wrote.

Such a predicate says of a row whether it is wrong, and that does not change until its key is written again, or expires.
So nothing is evaluated at any version but the first: what each version wrote (`_seq`) is looked at once, and how many
keys are wrong is counted on. The cost follows the rows that were written, whatever the state and the history.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from ...common import instants
from ...errors import Corruption, Gone, NotFound, Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import alike, from_files, quoted
from ...store.sst.types import EXPIRES, HASH, OP, SEQ, TOMBSTONE
from ...store.versions import history
from ...store.versions.manifest import Manifest, Sst
from ...store.versions.side_tables import owner, table_of
from ..query.columns import visible_schema
from ..query.row_local import HINT, ROW, row_local
from .between import Between
from .endpoints import find_ends
from .predicate import Predicate, Where
from .verdict import Flip, Flips

CHEAP_VERSIONS = 256
"""Versions that are gone through where nobody asked for a scan."""
CHEAP_BYTES = 64 << 20
"""Bytes of SSTs that are read then."""

_CHANGES = f"""
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
"""By version, how many more keys are wrong: a wrong row is there until its key is written again, or it expires."""


def scan(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    predicate: Predicate,
    *,
    good: str | None = None,
    bad: str | None = None,
    now_ms: int | None = None,
) -> Flips:
    """All versions between two refs at which a predicate on single rows went from good to bad or back.

    It is SQL over one table, of which each row is wrong or not whatever the others are. Without `good` and `bad` all of
    the history is looked at; relative refs count from `now_ms`, default the wall clock.

    Raises:
        Refused: it is no such predicate, and why; an end lies where history was thinned out; or as `find_ends`.
        Usage: the SQL is malformed.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    now_ms = instants.now_ms() if now_ms is None else now_ms
    ends = find_ends(store, app, predicate, good, bad, now_ms)
    if not ends.between.is_whole and (ends.good or not ends.begins):
        raise Refused(
            "--scan looks at every version, and some between these ends were thinned out",
            hint=f"choose ends from {ends.between.whole.ref(ends.between.whole.beginning())} on",
        )
    return _scanned(store, cache, predicate, replace(ends.between, low=ends.begin))


def scan_if_cheap(store: ObjectStore, cache: SstCache, predicate: Predicate, between: Between) -> Flips | None:
    """What `scan` finds between two moments; None where it takes more than a second or two, or cannot be.

    At most `CHEAP_VERSIONS` manifests are read, and `CHEAP_BYTES` of SSTs. Raises `Unavailable`.
    """
    watched = between.watched & between.high.stages.keys()
    # What is bounded for somebody who is not trusted takes no more than its evaluations.
    if not isinstance(predicate, Where) or predicate.bounds is not None or not between.is_whole:
        return None
    if sum(map(between.length, watched)) > CHEAP_VERSIONS:
        return None
    try:
        return _scanned(store, cache, predicate, between, max_bytes=CHEAP_BYTES)
    except (Refused, Usage, NotFound, Gone, Corruption):
        # Another predicate, or another history: the search says what it assumed.
        return None


def _scanned(
    store: ObjectStore, cache: SstCache, predicate: Predicate, between: Between, *, max_bytes: int | None = None
) -> Flips:
    """The changes between two moments of a line that is whole there. Raises as `scan`; `Refused` beyond `max_bytes`."""
    if not predicate.sql:
        raise Refused(f"{predicate.text} is no SQL: nobody knows which rows it looks at", hint=HINT)
    table, sql = row_local(predicate.sql, between.high.tables)
    stage, high = owner(table, between.high.stages), between.high.tables[table]
    first = between.lowest(stage)
    if rewinds := [each.version for each in high.rewinds if each.version > first]:
        raise Refused(
            f"--scan looks at what versions wrote, one after the other, and {stage}@v{rewinds[-1]} is a rewind",
            hint=f"choose ends on one side of it: --good {high.app}/{stage}@v{rewinds[-1]}, or --bad "
            f"{high.app}/{stage}@v{rewinds[-1] - 1}; without --scan, bisect takes both",
        )
    read = (history.read(store, high.app, stage, version) for version in range(first + 1, high.version + 1))
    manifests = [table_of(each, table) for each in read]
    sources = [*_written(manifests)]
    if stage in between.low.stages:
        low = table_of(between.low.stages[stage], table)
        manifests.insert(0, low)
        sources += (_WrittenIn(sst, first, None) for sst in low.ssts)
    taken = {each.sst.object: each.sst.bytes for each in sources}
    if max_bytes is not None and sum(taken.values()) > max_bytes:
        raise Refused(f"the versions wrote {sum(taken.values()):,} bytes; expected at most {max_bytes:,}")
    if not sources:
        return Flips(stage, first, high.version, (), ((first, 0),), 0)
    paths = {each.sst.object: cache.sql_path(store, each.sst) for each in sources}
    with duckdb.connect(config={"python_enable_replacements": "false"}) as con:
        _show(con, table, high, sources, paths)
        try:
            con.execute(f"CREATE TEMP TABLE _bad AS SELECT {ROW} FROM ({sql})")
        except duckdb.Error as error:
            raise Usage(str(error).partition("\n")[0], quoted=f"query: {predicate.sql}") from error
        clocks = {each.clock_ms: each.version for each in reversed(manifests)}
        con.register("_clocks", pa.table({"clock_ms": [*clocks], "gone": [*clocks.values()]}))
        keys = ", ".join(quoted(column.name) for column in high.table.key) if high.table else ""
        # By version, how many more keys are wrong, ascending.
        changes: dict[int, int] = dict(con.execute(_CHANGES.format(keys=keys, row=ROW)).fetchall())
        rows: int = con.execute("SELECT count(*) FROM _written").fetchall()[0][0]
    later = {version: delta for version, delta in changes.items() if version > first}
    at_first = sum(changes.values()) - sum(later.values())
    counts = [*zip([first, *later], np.cumsum([at_first, *later.values()]).tolist(), strict=True)]
    times = {each.version: each.time_ms for each in manifests}
    found = tuple(
        Flip(f"{high.app}/{stage}@v{version}", version, times[version], after > 0, after)
        for (_, before), (version, after) in pairwise(counts)
        if (before > 0) != (after > 0)
    )
    return Flips(stage, first, high.version, found, tuple(counts), rows)


@dataclass(frozen=True, slots=True)
class _WrittenIn:
    """An SST, and which of its rows count as written by a version."""

    sst: Sst
    version: int
    seq: int | None
    """Their `_seq`; None for all rows."""


def _written(manifests: Iterable[Manifest]) -> Iterator[_WrittenIn]:
    for manifest in manifests:
        if manifest.kind == "backfill":
            # Each row is another, whichever version wrote it.
            yield from (_WrittenIn(sst, manifest.version, None) for sst in manifest.ssts)
        elif manifest.traits.changes_rows:
            seq = manifest.row_seq
            yield from (_WrittenIn(s, manifest.version, seq) for s in manifest.ssts if s.seq_min <= seq <= s.seq_max)


def _show(
    con: duckdb.DuckDBPyConnection, table: str, high: Manifest, sources: Sequence[_WrittenIn], paths: Mapping[str, Path]
) -> None:
    """Make `_written` all rows that count, and a view of the table's name those that a query sees, deleted ones not.

    An SST may be there twice: as one of the first version, and as what a version wrote. All have the columns of `high`.
    """
    assert high.table is not None  # noqa: S101  the predicate is over it
    schema = pa.schema([("path", pa.string()), ("version", pa.int64()), ("seq", pa.int64())])
    labels = [{"path": str(paths[each.sst.object]), "version": each.version, "seq": each.seq} for each in sources]
    con.register("_labels", pa.Table.from_pylist(labels, schema=schema))
    files = sorted({str(path) for path in paths.values()})
    ssts = list({source.sst.object: source.sst for source in sources}.values())
    names = [HASH, *(column.name for column in high.table.columns), SEQ, OP]
    expires = any(sst.expiring for sst in ssts)
    rows = " UNION ALL ".join(
        f"SELECT {some.select(con, [*names, *([EXPIRES] if expires else [])])}, filename, file_row_number FROM "
        f"{from_files([paths[ssts[place].object] for place in some.places], by_name=True, filename=True)}"
        for some in alike(ssts, paths, high.table)
    )
    con.execute("SET allowed_paths = $files", {"files": files})
    con.execute("SET enable_external_access = false")
    con.execute(
        f"CREATE TEMP VIEW _written AS SELECT s.* EXCLUDE (filename), l.version,"
        f" {EXPIRES if expires else 'NULL::BIGINT'} AS _expires, hash(filename, file_row_number, l.version) AS {ROW}"
        f" FROM ({rows}) s JOIN _labels l ON l.path = s.filename WHERE l.seq IS NULL OR l.seq = s.{SEQ}"
    )
    shown = ", ".join(map(quoted, visible_schema(high.table).names))
    con.execute(f"CREATE TEMP VIEW {quoted(table)} AS SELECT {shown}, {ROW} FROM _written WHERE {OP} <> {TOMBSTONE}")
