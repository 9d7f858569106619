"""The history of one key: each change of its row, newest first, found without a look at what did not write it.

The newest stored row of the key at a version says by its `_seq` which version wrote it, and as long as it is stored,
nothing has changed but the clock. So the search jumps from there to the version before, whose row of the key is the
one that this row replaced (`_prev_seq`), and does the same. Where nothing is stored of the key, versions are gone
through backwards, by their manifests alone, to the first at which a merge can have forgotten something.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import pyarrow as pa

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads
from ...store.read.cache import SstCache
from ...store.sst.hashing import hash_keys
from ...store.sst.ttl import may_have_expired, seen_clock_ms
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import columns_of, owner
from ..cut.lineage import Window, direct, losses
from ..cut.moments import heads_of, stages_of
from ..query.columns import parse_key
from .stored_rows import StoredKey, StoredRow, identity
from .versions import VersionList


@dataclass(frozen=True, slots=True)
class RowChange:
    """A version that shows another row of the key than the one before it."""

    stage: str
    version: int
    after_version: int
    """The version that shows `before`: the one before it, or the last of those that is left; 0 when it is the first. Of
    a row that has expired since the newest version, that itself."""
    time_ms: int
    """When the version was committed; of a row that has expired since the newest version, when it did."""
    kind: Literal["added", "removed", "changed"]
    expired: bool
    """Whether the row had its time: then no record made the change."""
    inherited: Literal["", "clone", "collected", "renamed"]
    """For the row with which the history begins, why it does: an app was cloned, older versions were collected, or the
    stage was called otherwise before."""
    windows: tuple[Window, ...]
    """What was read of each input partition after `after_version`, up to this version; empty ones left out."""
    before: dict[str, object] | None
    """Visible values by column; None where there is no row."""
    after: dict[str, object] | None
    formerly: str = ""
    """What the stage was called before, where it begins with another name: its history is under that."""

    @property
    def gap(self) -> bool:
        """Whether versions right before it were collected: which of them made the change, nobody knows."""
        return 0 < self.after_version < self.version - 1

    @property
    def by_batch(self) -> bool:
        """Whether the batch that wrote the row is known: a replay of it has the record behind the change."""
        return not (self.expired or self.inherited or self.gap)


@dataclass(frozen=True, slots=True)
class RowHistory:
    """The changes of one key of a table."""

    app: str
    table: str
    key: pa.Table
    """The key columns, one row."""
    changes: tuple[RowChange, ...]
    """Newest first."""
    whole_from: int
    """The version from which on none was collected; 0 when none was at all."""
    reads: Reads
    """What it took, manifests aside."""


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
    """The newest `limit` changes (0 for all) of one key, over the versions that are left.

    For each change the SSTs are read in which the row before it may be, up to the one that has it: by ranges of hashes,
    filters and pages. Beside these, some manifests for each change, and all of those before the first row.

    The key's values are those of its columns, in their order, as text or as Python's own; None for a null. `now_ms` is
    the wall clock: by write time, rows expire also while nothing is committed. Raises `NotFound` (there is no such app
    or table, or a version was collected meanwhile), and `Usage` (there are not as many values as key columns, or one is
    not of its column's type).
    """
    heads = heads_of(store, app, stages_of(store, app))
    tables = columns_of(heads)
    declared = tables.get(table)
    if declared is None:
        raise NotFound(f"table of app {app!r}", table, tables)
    key = parse_key(table, declared, key_values)
    stored = StoredKey(store, cache, key, int(hash_keys(key, key.schema.names)[0]))
    versions = VersionList(store, app, owner(table, heads), table)
    changes = tuple(islice(key_changes(versions, stored, now_ms), limit or None))
    gaps = [versions.numbers[index] for index in range(1, len(versions)) if versions.is_gap(index)]
    whole_from = gaps[-1] if gaps else versions.numbers[0] if _inherited(versions) == "collected" else 0
    return RowHistory(app, table, key, changes, whole_from, stored.reads)


def key_changes(versions: VersionList, stored: StoredKey, now_ms: int) -> Iterator[RowChange]:
    """The changes of a key, newest first. Errors as of `key_history`."""
    later: _Shown | None = None
    for first, last, row in _spans(versions, stored):
        for shown in _shown(versions, first, last, row, now_ms):
            if later is not None:
                # A migration shows the same row in other columns.
                is_other = later.row is None or shown.row is None or later.seq != shown.seq
                # NaN is equal to no value, and to itself as it is written.
                if is_other and shown.row != later.row and repr(shown.row) != repr(later.row):
                    yield _change(versions, later, shown)
            later = shown
    if later is not None and later.row is not None:
        formerly = versions[0].former_name
        born = _change(versions, later, _Shown(0, None))
        yield replace(born, inherited=_inherited(versions), formerly=formerly)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is to be seen of the key from the version at an index on."""

    index: int
    row: dict[str, object] | None
    seq: int = 0
    """`_seq` of the row; 0 where there is none."""
    expired_ms: int | None = None
    """Set where a row is stored and has expired: when."""
    late: bool = False
    """Whether it did so after the newest version."""


def _spans(versions: VersionList, stored: StoredKey) -> Iterator[tuple[int, int, StoredRow | None]]:
    """First and last index of versions at which the same row of the key is stored, None for no row; newest first."""
    last = len(versions) - 1
    seq: int | None = None
    while last >= 0:
        row = _newest(versions, stored, last, seq)
        if row is None:
            first, seq = _forgot(versions, stored, last), None
        else:
            # A batch that lost its number to a compaction was committed under a later one than its rows have.
            indexes = range(versions.from_number(row.seq), last)
            having = (at for at in indexes if any(sst.seq_max >= row.seq for sst in stored.ssts(versions[at])))
            wrote = next(having, last)
            first = _as_it_is(versions, wrote, last)
            # What is known of right before it was written says nothing of any version earlier than that, nor of what a
            # rewind undid.
            is_new = versions.is_gap(first) or versions[first].rewind is not None
            seq = None if is_new else row.seq if first > wrote else row.replaced
        yield first, last, row
        last = first - 1


def _newest(versions: VersionList, stored: StoredKey, index: int, seq: int | None) -> StoredRow | None:
    """The row that is stored at an index; `seq` is what is known of its `_seq`: 0 that there is none, None nothing."""
    manifest = versions[index]
    if manifest.table is None:
        return None
    if seq == 0:
        # Where the next version has a merge in the place of an SST, that may have dropped a tombstone of the key or a
        # row that had expired, before the batch looked.
        there = set(map(identity, versions[index + 1].ssts))
        if all(identity(sst) in there for sst in stored.ssts(manifest)):
            return None
    if seq:
        # Where it was written the SST with it is a batch's, and small.
        wrote = versions[min(versions.from_number(seq), index)]
        row = stored.of_seq(wrote, seq, manifest.table) or stored.of_seq(manifest, seq, manifest.table)
        # Without it: versions in between were collected, and here another one is the newest.
        if row is not None:
            return row
    return stored.newest(manifest)


def _as_it_is(versions: VersionList, first: int, last: int) -> int:
    """The first index, from `first` to `last`, from which on the table has the columns that it has then.

    Nothing else changes a row that is stored, but a rewind.
    """
    newest = versions[last]
    if newest.table is None or not (newest.table.schema or newest.rewinds):
        return first
    had = newest.table.schema, newest.rewinds
    return versions.first_where(
        first, last, lambda each: each.table is not None and (each.table.schema, each.rewinds) == had
    )


def _forgot(versions: VersionList, stored: StoredKey, last: int) -> int:
    """The first index from which on nothing was stored of the key up to `last`, where nothing is, for all one knows."""
    later: Manifest | None = None
    for index, manifest in versions.backwards(last):
        if later is not None:
            if later.rewind is not None:
                return index + 1
            there, clock_ms, gap = set(map(identity, later.ssts)), later.clock_ms, versions.is_gap(index + 1)
            for sst in stored.ssts(manifest):
                if identity(sst) not in there and (gap or sst.tombstones or may_have_expired(sst, clock_ms)):
                    return index + 1
        later = manifest
    return 0


def _shown(versions: VersionList, first: int, last: int, row: StoredRow | None, now_ms: int) -> Iterator[_Shown]:
    """What is to be seen from index to index, newest first: the row, and from some version on not any more."""
    if row is None or row.values is None or row.expires_ms is None:
        yield _Shown(first, None) if row is None else _Shown(first, row.values, row.seq)
        return
    expires_ms, newest = row.expires_ms, versions[last]
    if newest.clock_ms >= expires_ms:
        gone = versions.first_where(first, last, lambda manifest: manifest.clock_ms >= expires_ms)
        if gone == first:
            yield _Shown(gone, None)  # as it was written
            return
        yield _Shown(gone, None, expired_ms=expires_ms)
    elif last == len(versions) - 1 and seen_clock_ms(newest, now_ms) >= expires_ms:
        yield _Shown(last, None, expired_ms=expires_ms, late=True)
    yield _Shown(first, row.values, row.seq)


def _change(versions: VersionList, later: _Shown, earlier: _Shown) -> RowChange:
    manifest = versions[later.index]
    before = manifest if later.late else versions[later.index - 1] if later.index else None
    gap = versions.is_gap(later.index)
    return RowChange(
        stage=versions.stage,
        version=manifest.version,
        after_version=before.version if before is not None else 0,
        time_ms=later.expired_ms if later.late and later.expired_ms is not None else manifest.time_ms,
        kind="added" if earlier.row is None else "removed" if later.row is None else "changed",
        expired=later.row is None and later.expired_ms is not None,
        inherited="",
        windows=direct(before, manifest, () if gap else losses(manifest)) if before is not None else (),
        before=earlier.row,
        after=later.row,
    )


def _inherited(versions: VersionList) -> Literal["", "clone", "collected", "renamed"]:
    """Why the history begins with what it begins with."""
    if not versions.numbers or versions.numbers[0] == 1:
        return ""
    return versions[0].traits.begins or "collected"
