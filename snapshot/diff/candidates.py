"""Search for the keys whose rows may differ between two versions. Rows that both versions share are not read.

A version shows the newest row of a key. If this row lies in an SST of both versions, and neither version has a newer
row of the key in another SST, both versions show the same row. So candidate keys come from SSTs that only one version
has. Of these rows, only rows written after the fork count, according to their `_seq`, because compaction rewrites older
rows with an unchanged `_seq`.

Two cases remain. A row may have expired by the clock of only one version. And a row may have been removed without a
trace: a merge that includes the oldest run drops all rows of a key if the newest row is a tombstone or has expired.
SSTs of later versions do not show this, so the batches since the fork are read.

The common ancestor of two versions of one app is the earlier version. The line of a clone starts with a version of its
source, so versions of two apps may have a common ancestor, over any number of clones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.fetch import request_pool
from ...store.sst import ttl
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.schema import EXPIRES, HASH, SEQ, arrow_schema
from ...store.versions import apps, history, horizon
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import SideManifest, as_main_table, stage_of, table_name
from ..cut.stored import find_snapshot
from ..query.columns import visible_schema
from .equality import Tolerance
from .key_changes import KeyChanges
from .stored_rows import TableSide, distinct_keys, sst_identity


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Versions of a stage, or of its side table `side_table`: from `after` + 1 to `up_to`."""

    store: ObjectStore
    app: str
    stage: str
    after: int
    up_to: int
    side_table: str = ""

    @property
    def table_identity(self) -> tuple[str, str, str, str]:
        return self.store.url, self.app, self.stage, self.side_table

    def find(self, number: int) -> Manifest | None:
        manifest = history.find(self.store, self.app, self.stage, number)
        return (
            as_main_table(manifest, table_name(self.stage, self.side_table))
            if manifest is not None and self.side_table
            else manifest
        )

    def manifests(self) -> Iterable[Manifest | None]:
        limit = horizon.newest(self.store, self.app)

        def read(number: int) -> Manifest | None:
            # A collectable manifest may outlive its SSTs.
            is_there = limit.allows(self.stage, number)
            return self.find(number) if is_there else None

        return request_pool().map(read, range(self.after + 1, self.up_to + 1))


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Common ancestor of two versions, and the versions from the ancestor to each of the two."""

    fork_seq: int = 0
    """Largest `_seq` at the fork; 0 without a common ancestor.

    Rows with this `_seq` or a smaller one are equal in both versions. Rows with a larger `_seq` were written after the
    fork, in one of the branches.
    """
    branches: tuple[tuple[StageVersions, ...], tuple[StageVersions, ...]] = ((), ())
    table: Table | None = None

    @property
    def next_id(self) -> int:
        """Lower bound of the column ids that may denote different columns in the two versions."""
        return (self.table.next_id or len(self.table.columns) + 1) if self.table is not None else 0


def find_ancestry(first: tuple[ObjectStore, Manifest], second: tuple[ObjectStore, Manifest]) -> Ancestry:
    """Return the common ancestor of two versions. Each argument is a pair of the app's store and the manifest.

    Makes three requests for each clone between the two apps, and none for two versions of one app. Raises `Corruption`
    (a stored app or manifest in between is damaged).
    """
    names = [
        (manifest.formerly[0].stage if manifest.formerly else stage_of(manifest), _side_table_name(manifest))
        for _, manifest in (first, second)
    ]
    if names[0] != names[1]:
        return Ancestry()
    apart = (first[0].url, first[1].app) != (second[0].url, second[1].app)
    lines = [tuple(_effective_ranges(*end, over_clones=apart)) for end in (first, second)]
    for number, first_part in enumerate(lines[0]):
        for index, second_part in enumerate(lines[1]):
            fork = min(first_part.up_to, second_part.up_to)
            if (
                fork > max(first_part.after, second_part.after)
                and first_part.table_identity == second_part.table_identity
            ):
                ends = (number, lines[0], first), (index, lines[1], second)
                ancestor = next(
                    (manifest for end in ends if (manifest := _fork_manifest(*end, fork)) is not None), None
                )
                if ancestor is None:
                    return Ancestry()
                # Later writes use a `_seq` above that of every existing row.
                seq = max((sst.seq_max for sst in ancestor.ssts), default=0)
                branches = _branch_since(lines[0], number, fork), _branch_since(lines[1], index, fork)
                return Ancestry(seq, branches, ancestor.table)
    return Ancestry()


def _effective_ranges(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """Yield the ranges of `_lineage_ranges`, without versions that rewinds undid.

    A clone continues the version numbers of its source, so numbers that were undone in the clone are also left out in
    the source.
    """
    ranges = manifest.base_versions(of_rows=True)
    for part in _lineage_ranges(store, manifest, over_clones=over_clones):
        for numbers in reversed(ranges):
            after, up_to = max(part.after, numbers.start - 1), min(part.up_to, numbers.stop - 1)
            if up_to > after:
                yield replace(part, after=after, up_to=up_to)


def _lineage_ranges(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """Yield the history of a version as version ranges, newest first: one range for each name that the stage had.

    With `over_clones`, the ranges of a clone are followed by those of its source, then by those of the source's source,
    and so on.
    """
    part = StageVersions(store, manifest.app, stage_of(manifest), 0, manifest.version, _side_table_name(manifest))
    names = list(manifest.formerly)
    while True:
        info = apps.find_app(part.store, part.app) if over_clones else None
        origin = info.origin if info is not None else None
        first_version = origin.cut.get(part.stage, 0) if origin is not None else 0
        if names and names[-1].version > first_version:
            former = names.pop()
            yield replace(part, after=former.version)
            part = replace(part, stage=former.stage, after=0, up_to=former.version)
            continue
        yield replace(part, after=first_version)
        if (
            origin is None or not first_version or origin.is_deep or origin.masks
        ):  # only other clones share rows with their source
            return
        source = part.store.at(origin.root)
        pinned = find_snapshot(source, origin.app, origin.snapshot)
        # Without the pin, the name may now belong to a different app.
        if pinned is None or pinned.stages.get(part.stage) != first_version:
            return
        part = StageVersions(source, origin.app, part.stage, 0, first_version, part.side_table)


def _side_table_name(manifest: Manifest) -> str:
    return manifest.name if isinstance(manifest, SideManifest) else ""


def _branch_since(line: tuple[StageVersions, ...], number: int, fork: int) -> tuple[StageVersions, ...]:
    branch = (*line[:number], replace(line[number], after=fork))
    return tuple(part for part in branch if part.up_to > part.after)


def _fork_manifest(
    number: int, line: tuple[StageVersions, ...], end: tuple[ObjectStore, Manifest], version: int
) -> Manifest | None:
    """Return the manifest of the version at which two lines fork; None if it was collected.

    If the fork is at the start of a clone and the source's version was collected, returns the clone's first version,
    which has equal rows.
    """
    part = line[number]
    if number == 0 and part.up_to == version:
        return end[1]
    if (manifest := part.find(version)) is not None:
        return manifest
    clone_part = line[number - 1] if number else None
    if clone_part is None or clone_part.after != version:
        return None
    return clone_part.find(version)


MANIFEST_READ_BYTES = 64 << 10
"""Number of SST bytes whose reading takes as long as reading one manifest."""


def changes_between(
    first: TableSide, second: TableSide, shared: Ancestry, names: Sequence[str], *, tolerant: bool = False
) -> KeyChanges:
    """Return the keys whose rows may differ between two sides of a table, and the two rows of each key.

    Both sides have the same key columns. `shared` is the ancestry of the two sides, and `names` are the value columns
    to compare. With `tolerant`, floats are compared within the tolerance of `equality`.
    """
    sides = first, second
    identities = [{sst_identity(sst) for sst in side.ssts} for side in sides]
    own = [
        [sst for sst in side.ssts if sst_identity(sst) not in other_identities]
        for side, other_identities in zip(sides, reversed(identities), strict=True)
    ]
    # Rows that each side wrote since the fork, tombstones included.
    written = [
        side.read_newest((sst for sst in ssts if sst.seq_max > shared.fork_seq), shared.fork_seq + 1, values=True)
        for side, ssts in zip(sides, own, strict=True)
    ]
    # Rows that expire between the two clocks: the side with the earlier clock still has them.
    early, late = sorted(sides, key=lambda side: side.clock_ms)
    new = {sst for ssts in own for sst in ssts if sst.seq_min > shared.fork_seq}
    expired = (
        early.read_stored(sst, EXPIRES, early.clock_ms + 1, late.clock_ms)
        for sst in early.ssts
        if sst not in new and ttl.visible_rows_key(sst, early.clock_ms) != ttl.visible_rows_key(sst, late.clock_ms)
    )
    parts = (*written, *_removed_keys(sides, own, shared), *expired)
    keys = distinct_keys(pa.concat_tables([part.select([HASH, *first.key]) for part in parts]))
    # Rows with a larger `_seq` are the newest rows of their keys and need no look-up.
    old = max([shared.fork_seq, *(sst.seq_max for sst in first.ssts if sst_identity(sst) in identities[1])])
    newest_rows = (rows.filter(pc.greater(rows.column(SEQ), old)) for rows in written)
    return _look_up_changes(keys, sides, names, newest_rows, tolerant=tolerant)


def _look_up_changes(
    keys: pa.Table,
    sides: Sequence[TableSide],
    names: Sequence[str],
    newest_rows: Iterable[pa.Table | None] = (None, None),
    *,
    tolerant: bool = False,
) -> KeyChanges:
    looked_up = (side.look_up(keys, names, rows) for side, rows in zip(sides, newest_rows, strict=True))
    (before, was), (after, is_there) = looked_up
    return KeyChanges.compare(
        keys.drop_columns([HASH]), before, after, was, is_there, tolerance=Tolerance() if tolerant else None
    )


def _removed_keys(
    sides: tuple[TableSide, TableSide], own: Sequence[Sequence[Sst]], shared: Ancestry
) -> Iterator[pa.Table]:
    """Yield keys whose row one side may have removed without a trace in its SSTs, while the other side still has it.

    Reads the versions since the fork. If some of these versions were collected, or if it is cheaper, compares the rows
    from before the fork instead. `own` has two elements: for each side, the SSTs that the other side lacks.
    """
    seq = shared.fork_seq
    older = [[sst for sst in ssts if sst.seq_min <= seq] for ssts in own]
    # Both sides show the rows of the same SSTs, so no row was dropped there.
    affected = [
        (side, branch)
        for side, branch, other_ssts in zip(sides, shared.branches, reversed(older), strict=True)
        if other_ssts and branch
    ]
    if not affected:
        return
    versions = sum(part.up_to - part.after for _, branch in affected for part in branch)
    stored_bytes = sum(sst.bytes for ssts in older for sst in ssts)
    if versions * MANIFEST_READ_BYTES <= stored_bytes:
        deleted = [_deleted_keys(side, branch, seq) for side, branch in affected]
        if None not in deleted:
            yield from chain.from_iterable(keys or () for keys in deleted)
            return
    # Keys whose newest row was written before the fork and differs, in SSTs that only one side has.
    newest = (
        side.read_newest(ssts, 0, seq).select([HASH, *side.key, SEQ]) for side, ssts in zip(sides, older, strict=True)
    )
    rows = pa.concat_tables(newest)
    # A row of both sides occurs twice.
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.drop_columns([HASH]))
    repeated = np.append(repeats[1:], False)
    yield rows.take(pa.array(order[~repeats & ~repeated])).select([HASH, *sides[0].key])


def _deleted_keys(side: TableSide, branch: Sequence[StageVersions], seq: int) -> list[pa.Table] | None:
    """Return keys that versions of a branch deleted or let expire, from SSTs that the side no longer has.

    Returns None if a version of the branch was collected.
    """
    manifests = [*chain.from_iterable(part.manifests() for part in branch)]
    if None in manifests:
        return None
    current = {sst_identity(sst) for sst in side.ssts}
    written = {
        sst_identity(sst): sst
        for manifest in manifests
        for sst in (manifest.ssts if manifest is not None else ())
        if sst.level == 0 and sst.seq_max > seq and (sst.tombstones or ttl.has_expired_rows(sst, side.clock_ms))
    }
    rows = (side.read_stored(sst, SEQ, seq + 1, sst.seq_max) for name, sst in written.items() if name not in current)
    return [stored.filter(pa.array(side.flag_hidden(stored))).select([HASH, *side.key]) for stored in rows]


def changed_keys(
    store: ObjectStore,
    cache: SstCache,
    before: Manifest | None,
    after: Manifest,
    rows: pa.Table,
    shared: Ancestry | None = None,
) -> KeyChanges | None:
    """Return the keys that turned bad at a commit; None for a stage without a table.

    `after` is the committed version, and `before` is the previous version, None for the first. If the predicate's
    result `rows` has all key columns, returns the keys in `rows`, in their order. Otherwise returns all keys whose row
    the commit changed, or whose row expired with the commit. `shared` is the ancestry of the two versions, if already
    known.
    """
    table = after.table
    if table is None:
        return None
    earlier = TableSide(store, cache, table, before, before.clock_ms if before is not None else 0)
    later = TableSide(store, cache, table, after, after.clock_ms)
    named_keys = _named_keys(rows, table)
    shown = [name for name in visible_schema(table).names if name not in earlier.key]
    if named_keys is not None:
        return replace(_look_up_changes(named_keys, (earlier, later), shown), from_predicate=True)
    if shared is None:
        shared = find_ancestry((store, before), (store, after)) if before is not None else Ancestry()
    return changes_between(earlier, later, shared, shown).changed().sorted_by_key()


def _named_keys(rows: pa.Table, table: Table) -> pa.Table | None:
    schema = arrow_schema(table.key)
    if not set(schema.names) <= set(rows.schema.names):
        return None
    try:
        keys = normalise_keys(rows.select(schema.names).cast(schema), schema.names)
    except pa.ArrowException:
        # A list, a struct, or text that is not a number: the query used the column's name for something else.
        return None
    return distinct_keys(keys.add_column(0, HASH, pa.array(hash_keys(keys, schema.names))))
