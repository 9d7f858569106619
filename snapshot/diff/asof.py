"""Rows of a table as they were known at the time of each of many labels: an as-of join with the table's history.

Each label's time selects a version, and the label gets its key's newest row at that version. Between the first and the
last selected version, each added SST is read once, and only for the labels' keys. The versions are processed in runs.
Within a run, a newer row always replaces an older row; a rewind, a migration or a gap of collected versions begins a
new run. A run starts with a look-up of the keys at its first version. So the cost grows with the number of labels plus
the number of written rows, not with labels times versions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, tee
from operator import itemgetter
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...common.validation import nearest_hint
from ...errors import NotFound, Usage
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.schema import EXPIRES, HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ...store.sst.ttl import expires_by_write_time
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Table
from ...store.versions.side_tables import find_owner, table_declarations
from ..cut.moments import heads_of, stages_of
from ..query.row_source import fit_columns
from .key_history import VersionList
from .stored_rows import TableSide

Clock = Literal["commit", "watermark"]

VERSION_COLUMN, PRESENT_COLUMN = "asof_version", "asof_present"

_READ_AHEAD = 64
_MAX_RUN_ROWS = 4_000_000
"""Maximum number of rows in memory: a run with more rows ends, and the next run begins."""
_NEVER_MS = (1 << 63) - 1
_BEFORE_ALL_MS = -(1 << 63)

Int64s = npt.NDArray[np.int64]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Labels with the row that each label's key had at the label's time."""

    rows: pa.Table
    """Table of the labels' columns and three kinds of added columns.

    `asof_version` is the version that was read: 0 before the first version, null if unknown. `asof_present` is true if
    the key had a row. The value columns of the table follow, null without a row.
    """
    present: int
    absent: int
    """Number of labels whose key had no row."""
    unknown: int
    """Number of labels without a time, or whose version is not stored."""


def read_as_of(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    table: str,
    labels: pa.Table,
    *,
    time: str,
    key: Mapping[str, str] | None = None,
    by: Clock = "commit",
) -> LabelledRows:
    """Join each label with the row that the table had for its key at the label's time.

    Args:
        store: Store of the app.
        cache: This machine's cache of SSTs.
        app: Folder of the app.
        table: Table of the app, by its present name; rows have its present columns.
        labels: One row per label, with the columns of the key: named as in the table, or as in `key`.
        time: Label column with the time: a timestamp (UTC without a zone), or a date (its start in UTC).
        key: Name of the label column, by key column. A missing entry means an equal name.
        by: `commit` takes the newest version that was committed at the time or before. `watermark` takes the newest
            version whose watermark is at or before the time. Its rows may include events up to the watermark's delay
            after the watermark.

    Raises `NotFound` (no such table, or a version was collected meanwhile) and `Usage` (a column is missing, or its
    type does not fit; a stage without a watermark).
    """
    heads = heads_of(store, app, stages_of(store, app))
    tables = table_declarations(heads)
    declared = tables.get(table)
    if declared is None:
        raise NotFound(f"table of app {app!r}", table, tables)
    owner = find_owner(table, heads)
    versions = VersionList(store, app, owner, heads[owner].version, table)
    if by == "watermark" and heads[owner].watermark_ms is None:
        raise Usage(f"stage {owner!r} has no watermark", hint="omit --by: versions are then chosen by commit time")
    keys, times = _key_columns(labels, declared, table, key or {}), _times_ms(labels, time)
    side = TableSide(store, cache, declared, None)
    clashing = sorted({*labels.column_names} & {VERSION_COLUMN, PRESENT_COLUMN, *side.value_names})
    if clashing:
        raise Usage(
            f"the labels have columns of the result: {', '.join(clashing)}",
            hint=_copy_hint("renames", f'SELECT * RENAME ("{clashing[0]}" AS "label_{clashing[0]}")'),
        )
    joined = _Joined.of(_Labels.group(keys, times))
    if len(versions) and joined.labels.timed.any():
        _join(side, versions, joined, by)
    rows = labels.append_column(VERSION_COLUMN, pa.array(joined.versions, mask=~joined.known))
    rows = rows.append_column(PRESENT_COLUMN, pa.array(joined.rows >= 0, mask=~joined.known))
    values = joined.values(side.empty_rows(values=True).select(side.value_names))
    for name in values.column_names:
        rows = rows.append_column(name, values.column(name))
    present = int((joined.rows >= 0).sum())
    return LabelledRows(rows, present, int(joined.known.sum()) - present, int((~joined.known).sum()))


def _key_columns(labels: pa.Table, declared: Table, table: str, names: Mapping[str, str]) -> pa.Table:
    schema = arrow_schema(declared.key)
    if unknown := names.keys() - set(schema.names):
        raise Usage(f"table {table!r} has no key column {min(unknown)!r}: its key is {', '.join(schema.names)}")
    columns = fit_columns(labels, schema, names, noun="the labels", role=f"the key of {table!r}", option="--on")
    return normalise_keys(columns, schema.names)


def _times_ms(labels: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in labels.column_names:
        raise Usage(f"the labels have no column {name!r} for the time{nearest_hint(name, labels.column_names)}")
    times = labels.column(name)
    if not (pa.types.is_timestamp(times.type) or pa.types.is_date(times.type)):
        raise Usage(
            f"column {name!r} of the labels is {times.type}; expected a timestamp or a date",
            hint=_copy_hint("converts ms since 1970", f'SELECT * REPLACE (epoch_ms("{name}") AS "{name}")'),
        )
    return times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())


def _copy_hint(does: str, select: str) -> str:
    return f"DuckDB {does}: COPY ({select} FROM 'labels.parquet') TO 'new.parquet'"


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels, grouped by key. `keys` and `hashes` have one element per distinct key, other arrays one per label."""

    key_numbers: Int64s
    keys: pa.Table
    hashes: Int64s
    times_ms: Int64s
    timed: npt.NDArray[np.bool_]

    @classmethod
    def group(cls, keys: pa.Table, times: pa.ChunkedArray) -> "_Labels":
        hashes = hash_keys(keys, keys.column_names)
        order, repeats = sort_keys(hashes, keys)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(~repeats) - 1
        first = order[~repeats]
        times_ms = times.fill_null(_BEFORE_ALL_MS).to_numpy()
        return cls(numbers, keys.take(pa.array(first)), hashes[first], times_ms, np.asarray(times.is_valid()))


@dataclass(slots=True)
class _Joined:
    labels: _Labels
    versions: Int64s
    known: npt.NDArray[np.bool_]
    rows: Int64s
    """Row number in the concatenation of `kept`, by label; -1 without a row."""
    kept: list[pa.Table] = field(default_factory=list)
    num_kept: int = 0

    @classmethod
    def of(cls, labels: _Labels) -> "_Joined":
        count = len(labels.times_ms)
        return cls(labels, np.zeros(count, np.int64), labels.timed.copy(), np.full(count, -1, np.int64))

    def keep(self, labels: Int64s, rows: pa.Table, positions: Int64s) -> None:
        """Assign a row of `rows` to each of these labels. `positions` has the index of the row for each label."""
        used, numbers = np.unique(positions, return_inverse=True)
        self.rows[labels] = self.num_kept + numbers
        self.kept.append(rows.take(pa.array(used)))
        self.num_kept += len(used)

    def values(self, none: pa.Table) -> pa.Table:
        """Return the value columns of each label, null without a row. `none` is an empty table with these columns."""
        rows = pa.concat_tables([none, *self.kept]).combine_chunks()
        return rows.take(pa.array(self.rows, mask=self.rows < 0))


@dataclass(frozen=True, slots=True)
class _Step:
    """Properties of one version that the join needs."""

    index: int
    """Index in the list of versions."""
    time_ms: int
    """Commit time, or watermark."""
    clock_ms: int
    expires_by_write: bool
    begins_run: bool
    after_seq: int
    """Largest `_seq` of earlier versions; rows that this version wrote have a larger `_seq`."""
    added: tuple[Sst, ...]
    """SSTs with rows that this version wrote."""


def _read_steps(versions: VersionList, indexes: range, by: Clock) -> Iterator[_Step]:
    newest_seq, previous = 0, None
    for index, manifest in zip(indexes, map_concurrently(versions.__getitem__, indexes), strict=True):
        begins = (
            previous is None
            or versions.has_gap_before(index)
            or manifest.rewind is not None
            or (previous.migration, previous.table) != (manifest.migration, manifest.table)
        )
        # A merge adds SSTs without new rows.
        changed = manifest.ssts if begins or previous is None else manifest.ssts.changes_since(previous.ssts)[0]
        added = () if begins else tuple(sst for sst in changed if sst.seq_max > newest_seq)
        seqs = max((sst.seq_max for sst in changed), default=0)
        shown_ms = manifest.time_ms if by == "commit" else manifest.watermark_ms
        if shown_ms is None:
            # Before its first watermark, a stage may have rows, of which the next watermark is the earliest known time.
            shown_ms = _NEVER_MS if any(True for _ in manifest.ssts) else _BEFORE_ALL_MS
        by_write = manifest.table is not None and expires_by_write_time(manifest.table.ttl) and by == "commit"
        yield _Step(index, shown_ms, manifest.clock_ms, by_write, begins, newest_seq, added)
        newest_seq, previous = seqs if begins else max(newest_seq, seqs), manifest


def _join(side: TableSide, versions: VersionList, joined: _Joined, by: Clock) -> None:
    labels = joined.labels
    times = labels.times_ms[labels.timed]
    first, last = 0, len(versions) - 1
    if by == "commit":
        # Commit times increase with versions.
        first = max(versions.first_where(0, len(versions), lambda manifest: manifest.time_ms > times.min()) - 1, 0)
        last = max(versions.first_where(first, len(versions), lambda manifest: manifest.time_ms > times.max()) - 1, 0)
    steps = list(_read_steps(versions, range(first, last + 1), by))
    # A rewind lowers the watermark. A version or a newer one fits if the lowest time from this version on does.
    lowest = np.minimum.accumulate([step.time_ms for step in reversed(steps)])[::-1]
    step_of = np.searchsorted(lowest, labels.times_ms, side="right") - 1
    numbers = np.asarray([versions.numbers[step.index] for step in steps])
    is_after_start = step_of >= 0
    joined.versions[:] = np.where(is_after_start, numbers[step_of], 0)
    joined.known &= _flag_known(versions, steps, step_of, labels.times_ms, by)
    # In the order of versions, the labels of a run are neighbours.
    order = np.flatnonzero(joined.known & is_after_start)
    order = order[np.argsort(step_of[order], kind="stable")]
    clocks = np.array([step.clock_ms for step in steps])[step_of]
    by_write = np.array([step.expires_by_write for step in steps])[step_of]
    clocks = np.where(by_write, np.maximum(clocks, labels.times_ms), clocks)
    for run in _split_runs(side, steps, labels.hashes, np.unique(step_of[order]).tolist()):
        low, high = np.searchsorted(step_of[order], [run.start, run.stop])
        if low < high:
            own = order[low:high]
            at_start = replace(side, manifest=versions[steps[run.start].index])
            _resolve_run(at_start, run, joined, own, step_of[own], clocks[own])


def _flag_known(
    versions: VersionList, steps: Sequence[_Step], step_of: Int64s, times_ms: Int64s, by: Clock
) -> npt.NDArray[np.bool_]:
    """Return a mask of labels: True if the label's version is stored, or the time is before the app's first version."""
    begins_late = len(versions) > 0 and (versions.numbers[0] > 1 or versions[0].starts_history)
    # After a version that is followed by a gap, the newest version is unknown, except at its own commit time.
    exact_only = np.array([versions.has_gap_before(step.index + 1) for step in steps if step.index + 1 < len(versions)])
    exact_only = np.append(exact_only, [False] * (len(steps) - len(exact_only))).astype(np.bool_)
    step_times = np.array([step.time_ms for step in steps])
    known = ~exact_only[step_of]
    if by == "commit":
        known |= times_ms == step_times[step_of]
    return np.where(step_of < 0, not begins_late, known)


@dataclass(slots=True)
class _Run:
    """Run of versions: the rows that it wrote after its first version, of the labels' keys."""

    start: int
    """Index of the first step; `stop` is the index after the last step."""
    stop: int
    steps: list[Int64s] = field(default_factory=list)
    """Step number of each row, by part."""
    parts: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def add(self, step: int, rows: pa.Table) -> None:
        self.stop = step + 1
        if rows.num_rows:
            self.steps.append(np.full(rows.num_rows, step))
            self.parts.append(rows)
            self.size += rows.num_rows


def _split_runs(side: TableSide, steps: Sequence[_Step], hashes: Int64s, wanted: Sequence[int]) -> Iterator[_Run]:
    """Yield runs that together have all `wanted` steps, ascending. Reads the rows of the keys with these `hashes`.

    A run begins and ends with a wanted step. A run whose rows need too much memory ends earlier, and the next run
    begins at that step.
    """
    begins = np.flatnonzero([step.begins_run for step in steps])
    first_of = begins[np.searchsorted(begins, wanted, side="right") - 1]
    for _, group in groupby(zip(first_of.tolist(), wanted, strict=True), key=itemgetter(0)):
        of_run = [step for _, step in group]
        run = _Run(of_run[0], of_run[0] + 1)
        items = ((number, sst) for number in range(of_run[0] + 1, of_run[-1] + 1) for sst in steps[number].added)

        def read(item: tuple[int, Sst]) -> pa.Table:
            number, sst = item
            return side.read_stored(sst, SEQ, steps[number].after_seq + 1, sst.seq_max, values=True, hashes=hashes)

        for (number, _), rows in _zip_read(read, items):
            if run.size > _MAX_RUN_ROWS and number >= run.stop:
                yield run
                run = _Run(number, number + 1)
            elif number > run.start:
                run.add(number, rows)
        run.stop = of_run[-1] + 1
        yield run


def _zip_read(read: Callable[[_T], pa.Table], items: Iterable[_T]) -> Iterator[tuple[_T, pa.Table]]:
    ahead, items = tee(items)
    return zip(items, map_concurrently(read, ahead, max_unread=_READ_AHEAD), strict=True)


def _resolve_run(side: TableSide, run: _Run, joined: _Joined, own: Int64s, step_of: Int64s, clocks: Int64s) -> None:
    """Assign rows to the labels `own`. `side` is the table at the run's first version.

    `step_of` and `clocks` have one element for each of these labels: its step, and the time by which rows expire.
    """
    labels = joined.labels
    numbers, at = np.unique(labels.key_numbers[own], return_inverse=True)
    keys, hashes = labels.keys.take(pa.array(numbers)), labels.hashes[numbers]
    rows = pa.concat_tables([side.empty_rows(values=True), *run.parts])
    # Rows of other keys may have the hash of a label's key. Their numbers are above the numbers of the labels' keys.
    key_of = _number_keys(keys, hashes, rows)
    row_steps = np.concatenate([np.empty(0, np.int64), *run.steps]) - run.start
    span = run.stop - run.start
    places = key_of * span + row_steps
    order = np.lexsort((rows.column(SEQ).to_numpy(), places))
    newest = np.searchsorted(places[order], at * span + (step_of - run.start), side="right") - 1
    row = order[newest] if len(order) else newest
    written = newest >= 0
    written[written] = key_of[row[written]] == at[written]
    chosen = rows.take(pa.array(row[written]))
    gone = np.asarray(pc.equal(chosen.column(OP), TOMBSTONE)) | _expired(chosen.column(EXPIRES), clocks[written])
    joined.keep(own[written][~gone], chosen.select(side.value_names), np.flatnonzero(~gone))
    expires = np.full(len(hashes), _NEVER_MS)
    values, present = multi_get(
        side.store, side.cache, side.ssts, side.table, hashes, keys, clock_ms=_BEFORE_ALL_MS, expires=expires
    )
    kept = ~written & present[at] & (expires[at] > clocks)
    joined.keep(own[kept], values.select(side.value_names), at[kept])


def _number_keys(keys: pa.Table, hashes: Int64s, rows: pa.Table) -> Int64s:
    """Return the position of each row's key in the distinct keys `keys`. A missing key gets a larger number."""
    own = rows.select(keys.column_names)
    order, repeats = sort_keys(np.concatenate([hashes, rows.column(HASH).to_numpy()]), pa.concat_tables([keys, own]))
    # The sort is stable, so the first of several equal keys comes from `keys`, if `keys` has it.
    groups = np.cumsum(~repeats) - 1
    numbers = np.empty(len(order), np.int64)
    numbers[order] = order[~repeats][groups]
    return numbers[len(hashes) :]


def _expired(expires: pa.ChunkedArray, clocks: Int64s) -> npt.NDArray[np.bool_]:
    return np.asarray(expires.fill_null(_NEVER_MS).to_numpy() <= clocks)
