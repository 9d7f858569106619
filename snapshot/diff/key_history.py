"""History of one key: each change of its row, newest first. Versions that did not write the key are not read.

The `_seq` of the key's newest stored row is the version that wrote this row. After that version, the result of a
look-up changes only if the row expires. So the search jumps to the version before the write. There it finds the
replaced row (`_prev_seq`), and continues with that row. If a version stores no row of the key, the search reads only
manifests, back to the last version whose merge may have dropped a row of the key.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import pyarrow as pa

from ...errors import NotFound
from ...state.records import location_of
from ...store.objects.counting import ReadCounters
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.fetch import request_pool
from ...store.sst.ttl import has_expired_rows, read_clock_ms
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import as_main_table, find_owner, table_declarations
from ..cut.lineage import Window, direct_windows, skipped_windows
from ..cut.moments import heads_of, stages_of
from ..query.columns import parse_key
from .stored_rows import KeyReader, StoredRow, sst_identity

_READ_AHEAD = 64


class VersionList:
    """Stored versions of a stage up to `newest`, ascending, by index from 0. Collected versions are left out.

    With `table`, the name of a side table, the manifests are those of the side table.
    """

    def __init__(self, store: ObjectStore, app: str, stage: str, newest: int, table: str = "") -> None:
        self.numbers = history.version_numbers(store, app, stage, newest)
        self.stage = stage
        self._store, self._app, self._table = store, app, table or stage

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Manifest:
        """Return the manifest at an index. Raises `NotFound` (collected meanwhile) and `Corruption`."""
        return as_main_table(history.read(self._store, self._app, self.stage, self.numbers[index]), self._table)

    def read(self, *indexes: int) -> list[Manifest]:
        """Return the manifests at these indexes, which are read concurrently."""
        distinct = tuple(dict.fromkeys(indexes))
        run_all = request_pool().map if len(distinct) > 1 else map
        manifests = dict(zip(distinct, run_all(self.__getitem__, distinct), strict=True))
        return [manifests[index] for index in indexes]

    def index_from_version(self, number: int) -> int:
        return bisect_left(self.numbers, number)

    def has_gap_before(self, index: int) -> bool:
        return index > 0 and self.numbers[index] > self.numbers[index - 1] + 1

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """Return the first index from `low` to `high` for which `holds` is true.

        This is a binary search: if `holds` is true for an index, it must be true for all higher indexes.
        """
        return low + bisect_left(range(low, high), True, key=lambda index: holds(self[index]))

    def backwards(self, index: int) -> Iterator[tuple[int, Manifest]]:
        for end in range(index + 1, 0, -_READ_AHEAD):
            indexes = range(max(end - _READ_AHEAD, 0), end)
            yield from reversed(list(zip(indexes, self.read(*indexes), strict=True)))


@dataclass(frozen=True, slots=True)
class RowChange:
    """Change of a key's row by one version."""

    stage: str
    version: int
    after_version: int
    """Version that shows the row `before`: the stored version before this one, 0 if there is none.

    If the row expired after the newest version, this is the newest version.
    """
    time_ms: int
    """Commit time of the version; the expiry time if the row expired after the newest version."""
    kind: Literal["added", "removed", "changed"]
    expired: bool
    inherited: Literal["", "clone", "collected", "renamed"]
    """Reason why the history starts with this row; empty if the version made the change.

    The app was cloned, older versions were collected, or the stage was renamed.
    """
    windows: tuple[Window, ...]
    """Offsets read by the versions after `after_version`, up to this one, by input partition; no empty ranges."""
    before: dict[str, object] | None
    after: dict[str, object] | None
    formerly: str = ""
    """Previous name of the stage, if the history starts with a rename. The older history is under that name."""
    record: str = ""
    """Location of the record that wrote or deleted the row, `topic[partition]@offset`, if the row stores it."""

    @property
    def gap(self) -> bool:
        """True if versions directly before this version were collected: the change may be theirs."""
        return 0 < self.after_version < self.version - 1

    @property
    def is_by_batch(self) -> bool:
        """True if the batch that wrote the row is known, so that a replay can find the record behind the change."""
        return not (self.expired or self.inherited or self.gap)


@dataclass(frozen=True, slots=True)
class RowHistory:
    """Changes of one key of a table, newest first."""

    app: str
    table: str
    key: pa.Table
    changes: tuple[RowChange, ...]
    whole_from: int
    """First version after the last collected one; 0 if none was collected."""
    reads: ReadCounters
    """Number of requests and bytes read, without those for manifests."""


def key_history(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    table: str,
    key_values: Sequence[object],
    *,
    limit: int = 0,
    now_ms: int,
) -> RowHistory:
    """Return the history of one key: the newest `limit` changes (0 for all) in the versions that are still stored.

    For each change, reads a few manifests, and the parts of SSTs that may hold the previous row. For the time before
    the key's first row, reads all manifests.

    `key_values` are the values of the key columns, in their order, as text or Python values; None for null. `now_ms` is
    the wall clock: under a TTL by write time, rows expire also while nothing is committed.

    Raises `NotFound` (no such app or table, or a version was collected meanwhile) and `Usage` (wrong number of key
    values, or a value of the wrong type).
    """
    heads = heads_of(store, app, stages_of(store, app))
    tables = table_declarations(heads)
    declared = tables.get(table)
    if declared is None:
        raise NotFound(f"table of app {app!r}", table, tables)
    key = parse_key(table, declared, key_values)
    stored = KeyReader(store, cache, key)
    owner = find_owner(table, heads)
    versions = VersionList(store, app, owner, heads[owner].version, table)
    changes = tuple(islice(key_changes(versions, stored, now_ms), limit or None))
    # The complete history has no gaps.
    starts = range(1, min(len(versions.numbers.kept) + 1, len(versions)))
    gaps = [versions.numbers[index] for index in starts if versions.has_gap_before(index)]
    whole_from = gaps[-1] if gaps else versions.numbers[0] if _reason_for_start(versions) == "collected" else 0
    return RowHistory(app, table, key, changes, whole_from, stored.reads)


def key_changes(
    versions: VersionList, stored: KeyReader, now_ms: int, *, rewrites: bool = False
) -> Iterator[RowChange]:
    """Yield the changes of a key, newest first. Raises `NotFound` if a version was collected meanwhile.

    With `rewrites`, also yields writes that did not change the row.
    """
    later: _VisibleRow | None = None
    for first, last, row in _stored_spans(versions, stored):
        for shown in _visible_rows(versions, first, last, row, now_ms):
            if later is not None:
                # After a migration, the same row has different columns.
                is_other = later.row is None or shown.row is None or later.seq != shown.seq
                # NaN is not equal to itself, but its repr is.
                is_changed = shown.row != later.row and repr(shown.row) != repr(later.row)
                if is_other and (is_changed or (rewrites and shown.row is not None is not later.row)):
                    yield _row_change(versions, later, shown)
            later = shown
    if later is not None and later.row is not None:
        formerly = versions[0].former_name
        start = _row_change(versions, later, _VisibleRow(0, None))
        yield replace(start, inherited=_reason_for_start(versions), formerly=formerly)


@dataclass(frozen=True, slots=True)
class _VisibleRow:
    """Visible row of the key, first shown by the version at `index`."""

    index: int
    row: dict[str, object] | None
    seq: int = 0
    expired_ms: int | None = None
    is_after_head: bool = False
    record: tuple[int, int] | None = None


def _stored_spans(versions: VersionList, stored: KeyReader) -> Iterator[tuple[int, int, StoredRow | None]]:
    """Yield ranges of versions that store one row of the key, newest first: (first index, last index, row)."""
    last = len(versions) - 1
    seq: int | None = None
    while last >= 0:
        row = _stored_row(versions, stored, last, seq)
        if row is None:
            # A caller that asks for no older change is spared the search for the first such version.
            yield last, last, None
            first, seq = _first_without_row(versions, stored, last), None
        else:
            # If a compaction took the batch's version number, the batch was committed later than its `_seq` says.
            indexes = range(versions.index_from_version(row.seq), last)
            having = (at for at in indexes if any(sst.seq_max >= row.seq for sst in stored.ssts_in_range(versions[at])))
            wrote = next(having, last)
            first = _first_with_columns(versions, wrote, last)
            # `_prev_seq` describes only the version right before the write. It does not hold across a gap or a rewind.
            is_new = versions.has_gap_before(first) or versions[first].rewind is not None
            seq = None if is_new else row.seq if first > wrote else row.replaced_seq
        yield first, last, row
        last = first - 1


def _stored_row(versions: VersionList, stored: KeyReader, index: int, seq: int | None) -> StoredRow | None:
    """Return the newest row of the key that the version at `index` stores; None if it stores none.

    `seq` is the expected `_seq` of the row: 0 for no row, None for unknown.
    """
    # At the version that wrote the row, its SST is the small SST of one batch.
    manifest, wrote = versions.read(index, min(versions.index_from_version(seq), index) if seq else index)
    if manifest.table is None:
        return None
    if seq == 0:
        # If the next version has merged an SST, the merge may have dropped a tombstone or an expired row of the key
        # before the batch read that row.
        next_ssts = set(map(sst_identity, versions[index + 1].ssts))
        if all(sst_identity(sst) in next_ssts for sst in stored.ssts_in_range(manifest)):
            return None
    if seq:
        row = stored.find_seq(wrote, seq, manifest.table) or stored.find_seq(manifest, seq, manifest.table)
        # None: versions in between were collected, and the newest row here is a different row.
        if row is not None:
            return row
    return stored.read_newest(manifest)


def _first_with_columns(versions: VersionList, first: int, last: int) -> int:
    """Return the first index, from `first` on, at which the table already has its columns at index `last`.

    Only a migration or a rewind can change a row that stays stored.
    """
    newest = versions[last]
    if newest.table is None or not (newest.table.schema or newest.rewinds):
        return first
    expected = newest.table.schema, newest.rewinds
    return versions.first_where(
        first,
        last,
        lambda manifest: manifest.table is not None and (manifest.table.schema, manifest.rewinds) == expected,
    )


def _first_without_row(versions: VersionList, stored: KeyReader, last: int) -> int:
    later: Manifest | None = None
    for index, manifest in versions.backwards(last):
        if later is not None:
            if later.rewind is not None:
                return index + 1
            later_ssts, clock_ms, gap = (
                set(map(sst_identity, later.ssts)),
                later.clock_ms,
                versions.has_gap_before(index + 1),
            )
            for sst in stored.ssts_in_range(manifest):
                if sst_identity(sst) not in later_ssts and (gap or sst.tombstones or has_expired_rows(sst, clock_ms)):
                    return index + 1
        later = manifest
    return 0


def _visible_rows(
    versions: VersionList, first: int, last: int, row: StoredRow | None, now_ms: int
) -> Iterator[_VisibleRow]:
    """Yield the visible rows from index `first` to `last`, newest first.

    None stands for the time after a row expired.
    """
    if row is None or row.values is None or row.expires_ms is None:
        yield (_VisibleRow(first, None) if row is None else _VisibleRow(first, row.values, row.seq, record=row.record))
        return
    expires_ms, newest = row.expires_ms, versions[last]
    if newest.clock_ms >= expires_ms:
        expired_at = versions.first_where(first, last, lambda manifest: manifest.clock_ms >= expires_ms)
        if expired_at == first:
            yield _VisibleRow(expired_at, None)  # as it was written
            return
        yield _VisibleRow(expired_at, None, expired_ms=expires_ms)
    elif last == len(versions) - 1 and read_clock_ms(newest, now_ms) >= expires_ms:
        yield _VisibleRow(last, None, expired_ms=expires_ms, is_after_head=True)
    yield _VisibleRow(first, row.values, row.seq)


def _row_change(versions: VersionList, later: _VisibleRow, earlier: _VisibleRow) -> RowChange:
    manifest = versions[later.index]
    previous = manifest if later.is_after_head else versions[later.index - 1] if later.index else None
    gap = versions.has_gap_before(later.index)
    return RowChange(
        stage=versions.stage,
        version=manifest.version,
        after_version=previous.version if previous is not None else 0,
        time_ms=later.expired_ms if later.is_after_head and later.expired_ms is not None else manifest.time_ms,
        kind="added" if earlier.row is None else "removed" if later.row is None else "changed",
        expired=later.row is None and later.expired_ms is not None,
        inherited="",
        windows=direct_windows(previous, manifest, () if gap else skipped_windows(manifest))
        if previous is not None
        else (),
        before=earlier.row,
        after=later.row,
        record=location_of(manifest, *later.record) if later.record is not None and len(manifest.inputs) == 1 else "",
    )


def _reason_for_start(versions: VersionList) -> Literal["", "clone", "collected", "renamed"]:
    if not versions.numbers or versions.numbers[0] == 1:
        return ""
    return versions[0].traits.begins or "collected"
