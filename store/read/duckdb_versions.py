"""A table at several of its versions, as one DuckDB view: each row of an SST, with the versions at which it is visible.

An SST belongs to many versions and hardly changes from one to the next: a few of its rows are hidden by what came. So
its file is scanned once, whatever the number of versions, and only rows that are hidden at some of them are listed one
by one: each has the span of versions at which it is seen, all others that of their SST.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Usage
from ..objects.protocol import ObjectStore
from ..sst.sorted_runs import newer_than
from ..sst.ttl import may_have_expired
from ..sst.types import EXPIRES, SEQ, visible_columns
from ..versions.manifest import Manifest, Sst, Table
from .cache import SstCache
from .duckdb_view import alike, from_files, quoted
from .visible_rows import Hiding

_Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Rows, and the first and the last place at which each is seen; none of them where the last is before the first."""


@dataclass(slots=True)
class _Stay:
    """An SST in one version after the other, and what may hide its rows. Places among the versions count from 0."""

    sst: Sst
    first: int
    last: int
    changes: list[tuple[int, list[Sst], list[Sst]]] = field(default_factory=list)
    """Places at which SSTs that may hide its rows came, and at which some went."""


def register(
    con: duckdb.DuckDBPyConnection, name: str, store: ObjectStore, cache: SstCache, manifests: Sequence[Manifest]
) -> frozenset[Path]:
    """Make the table at these versions a temporary view `name`, with `_version` and `_committed_at` of each row.

    The manifests are versions of one stage, ascending; at least one of them has an SST, and each is shown by its own
    clock. The connection needs no extension that DuckDB does not bring along. The cache holds local copies of a remote
    store's SSTs, and must stay open while the view is queried. Returns the files that it reads, each one of
    `cache.sql_path`.

    Raises `Usage` where the stage keeps no table.
    """
    table = manifests[-1].table
    if table is None:
        raise Usage(f"stage {manifests[-1].stage!r} keeps no state, so there is no table to query")
    stays = _stays([manifest.ssts for manifest in manifests])
    versions = {
        "place": np.arange(len(manifests)),
        "_version": [each.version for each in manifests],
        "_committed_at": pa.array([each.time_ms * 1_000 for each in manifests], pa.timestamp("us", "UTC")),
        "clock_ms": [each.clock_ms for each in manifests],
    }
    places = {
        "file_index": np.arange(len(stays)),
        "first": [stay.first for stay in stays],
        "last": [stay.last for stay in stays],
    }
    con.register(f"{name} versions", pa.table(versions))
    con.register(f"{name} stays", pa.table(places))
    con.register(f"{name} spans", _spans(store, cache, stays, table))
    columns = [column.name for column in visible_columns(table)]
    expires = any(may_have_expired(stay.sst, manifests[stay.last].clock_ms) for stay in stays)
    scanned = [*columns, *([EXPIRES] if expires else [])]
    shown = ", ".join(f"seen.{quoted(each)}" for each in columns)
    # Some may be from before the table got a ttl, and lack the column.
    by_name = expires or table.ttl is not None
    paths = {stay.sst.object: cache.sql_path(store, stay.sst) for stay in stays}
    rows = " UNION ALL ".join(
        f"SELECT {some.select(con, scanned)}, {list(some.places)}[file_index::BIGINT + 1] AS file_index, "
        f"file_row_number FROM {from_files([paths[stays[place].sst.object] for place in some.places], by_name=by_name)}"
        for some in alike([stay.sst for stay in stays], paths, table)
    )
    # No column of a table has the names that SSTs call their own.
    seen = (
        f"SELECT stored.*, "
        f"unnest(range(coalesce(span.first, stay.first), coalesce(span.last, stay.last) + 1)) AS {SEQ} "
        f"FROM ({rows}) stored JOIN {quoted(f'{name} stays')} stay USING (file_index) "
        f"LEFT JOIN {quoted(f'{name} spans')} span USING (file_index, file_row_number)"
    )
    alive = f" WHERE seen.{EXPIRES} IS NULL OR seen.{EXPIRES} > version.clock_ms" if expires else ""
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {shown}, version._version, version._committed_at "
        f"FROM ({seen}) seen JOIN {quoted(f'{name} versions')} version ON version.place = seen.{SEQ}{alive}"
    )
    return frozenset(paths.values())


def _stays(versions: Sequence[Sequence[Sst]]) -> list[_Stay]:
    """Each SST once for each row of versions that have it."""
    found: list[_Stay] = []
    there: dict[Sst, _Stay] = {}
    for place, ssts in enumerate(versions):
        now = dict.fromkeys(ssts)
        came = [sst for sst in now if sst not in there]
        went = [sst for sst in there if sst not in now]
        for sst in went:
            del there[sst]
        for sst, stay in there.items():
            stay.last = place
            entered, left = newer_than(sst, came), newer_than(sst, went)
            if entered or left:
                stay.changes.append((place, entered, left))
        for sst in came:
            there[sst] = _Stay(sst, place, place, [(place, newer_than(sst, now), [])])
            found.append(there[sst])
    return found


def _spans(store: ObjectStore, cache: SstCache, stays: Sequence[_Stay], table: Table) -> pa.Table:
    """Of each row that is hidden at some place of its SST's stay, the spans of places at which it is seen."""
    columns: list[list[npt.NDArray[np.int64]]] = [[], [], [], []]
    hiding = Hiding(store, cache, table)
    for number, stay in enumerate(stays):
        newer = dict.fromkeys(sst for _, entered, _ in stay.changes for sst in entered)
        hidden = hiding.by(stay.sst, list(newer))
        if any(positions.size for positions in hidden.values()):
            for rows, first, last in _of_stay(stay, hidden):
                for column, part in zip(columns, (np.full(rows.size, number), rows, first, last), strict=True):
                    column.append(part)
    names = ("file_index", "file_row_number", "first", "last")
    return pa.table([np.concatenate([np.empty(0, np.int64), *parts]) for parts in columns], [*names])


def _of_stay(stay: _Stay, hidden: dict[Sst | None, npt.NDArray[np.int64]]) -> Iterator[_Spans]:
    """The spans of the rows that are hidden at some place; of a row that never is seen one without places."""
    # How many SSTs hide a row, and the place from which on it has been seen; -1 while it is not.
    hiding, since = np.zeros(stay.sst.rows, np.int32), np.full(stay.sst.rows, stay.first, np.int64)
    changed = np.zeros(stay.sst.rows, np.bool_)
    for place, entered, left in stay.changes:
        always = [None] if place == stay.first and None in hidden else []
        touched = [np.empty(0, np.int64)]
        for some, step in ((left, -1), ([*always, *entered], 1)):
            for sst in some:
                hiding[hidden[sst]] += step
                touched.append(hidden[sst])
        rows = np.unique(np.concatenate(touched))
        gone = rows[(hiding[rows] > 0) & (since[rows] >= 0)]
        if gone.size:
            yield gone, since[gone], np.full(gone.size, place - 1)
            since[gone], changed[gone] = -1, True
        since[rows[(hiding[rows] == 0) & (since[rows] < 0)]] = place
    until_the_last = np.flatnonzero(changed & (since >= 0))
    if until_the_last.size:
        yield until_the_last, since[until_the_last], np.full(until_the_last.size, stay.last)
