"""A table at several versions as one DuckDB view: each row of an SST, with the versions that show it.

An SST belongs to many versions, and few of its rows change visibility from one version to the next, when newer rows
hide them. So its file is scanned once, whatever the number of versions. Only rows that are hidden at some version are
listed, with the span of versions that show them; all other rows have the span of their SST.
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
"""Row numbers, and the first and last position at which each row is visible; last < first for never."""


@dataclass(slots=True)
class _Stay:
    """An SST in consecutive versions, and the SSTs that may hide its rows. Positions of versions count from 0."""

    sst: Sst
    first: int
    last: int
    changes: list[tuple[int, list[Sst], list[Sst]]] = field(default_factory=list)
    """Positions at which SSTs that may hide its rows were added, and at which some were removed."""


def register(
    con: duckdb.DuckDBPyConnection, name: str, store: ObjectStore, cache: SstCache, manifests: Sequence[Manifest]
) -> frozenset[Path]:
    """Create a temporary view `name` of the table at these versions, with `_version` and `_committed_at` of each row.

    The manifests are versions of one stage, ascending; at least one of them has an SST, and each is read by its own
    clock. The connection needs no DuckDB extension. The cache holds local copies of a remote store's SSTs, and must
    stay open while the view is queried. Returns the files that the view reads, each from `cache.sql_path`.

    Raises `Usage` if the stage has no table.
    """
    table = manifests[-1].table
    if table is None:
        raise Usage(f"stage {manifests[-1].stage!r} keeps no state, so there is no table to query")
    stays = _stays([manifest.ssts for manifest in manifests])
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
    con.register(f"{name} spans", _spans(store, cache, stays, table))
    columns = [column.name for column in visible_columns(table)]
    expires = any(may_have_expired(stay.sst, manifests[stay.last].clock_ms) for stay in stays)
    scanned = [*columns, *([EXPIRES] if expires else [])]
    shown = ", ".join(f"seen.{quoted(column)}" for column in columns)
    # SSTs from before the table got a ttl lack the column.
    by_name = expires or table.ttl is not None
    paths = {stay.sst.object: cache.sql_path(store, stay.sst) for stay in stays}
    rows = " UNION ALL ".join(
        f"SELECT {group.select(con, scanned)}, {list(group.positions)}[file_index::BIGINT + 1] AS file_index, "
        f"file_row_number FROM {from_files([paths[stays[i].sst.object] for i in group.positions], by_name=by_name)}"
        for group in alike([stay.sst for stay in stays], paths, table)
    )
    # No table column has a reserved name.
    seen = (
        f"SELECT stored.*, "
        f"unnest(range(coalesce(span.first, stay.first), coalesce(span.last, stay.last) + 1)) AS {SEQ} "
        f"FROM ({rows}) stored JOIN {quoted(f'{name} stays')} stay USING (file_index) "
        f"LEFT JOIN {quoted(f'{name} spans')} span USING (file_index, file_row_number)"
    )
    unexpired = f" WHERE seen.{EXPIRES} IS NULL OR seen.{EXPIRES} > version.clock_ms" if expires else ""
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {shown}, version._version, version._committed_at "
        f"FROM ({seen}) seen JOIN {quoted(f'{name} versions')} version ON version.place = seen.{SEQ}{unexpired}"
    )
    return frozenset(paths.values())


def _stays(versions: Sequence[Sequence[Sst]]) -> list[_Stay]:
    """Return each SST once for each range of consecutive versions that have it."""
    stays: list[_Stay] = []
    open_stays: dict[Sst, _Stay] = {}
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
            open_stays[sst] = _Stay(sst, position, position, [(position, newer_than(sst, current), [])])
            stays.append(open_stays[sst])
    return stays


def _spans(store: ObjectStore, cache: SstCache, stays: Sequence[_Stay], table: Table) -> pa.Table:
    """Return the spans of positions that show each row, for rows hidden at some position of their SST."""
    columns: list[list[npt.NDArray[np.int64]]] = [[], [], [], []]
    hiding = Hiding(store, cache, table)
    for number, stay in enumerate(stays):
        newer = dict.fromkeys(sst for _, entered, _ in stay.changes for sst in entered)
        hidden = hiding.by(stay.sst, list(newer))
        if any(positions.size for positions in hidden.values()):
            for rows, first, last in _row_spans(stay, hidden):
                for column, part in zip(columns, (np.full(rows.size, number), rows, first, last), strict=True):
                    column.append(part)
    names = ("file_index", "file_row_number", "first", "last")
    return pa.table([np.concatenate([np.empty(0, np.int64), *parts]) for parts in columns], [*names])


def _row_spans(stay: _Stay, hidden: dict[Sst | None, npt.NDArray[np.int64]]) -> Iterator[_Spans]:
    """Yield the spans of rows that are hidden at some position; an empty span for rows that are never visible."""
    # Number of SSTs that hide each row, and the position since which the row is visible; -1 while it is hidden.
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
