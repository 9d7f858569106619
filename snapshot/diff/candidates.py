"""The keys whose rows may differ between two versions, and those that a commit turned bad, with their values.

They are found without a look at what both have. A key's newest row decides what a version shows of it. Where it lies in
an SST that both versions have, and neither has a newer one elsewhere, both show the same. So candidates come from the
SSTs that one of them has for itself; and of these from rows written after the two forked, because compaction rewrites
rows and keeps their `_seq`. What is left are rows that went away: expired by one version's clock and not by the
other's; or removed and forgotten. A merge that includes the oldest run forgets the keys whose newest row is a
tombstone, or has expired: with that row go all that it hid. So the SSTs of a later version need not show that a key was
removed: what batches wrote in between does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import ttl
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.types import EXPIRES, HASH, SEQ, arrow_schema
from ...store.versions.manifest import Manifest, Sst, Table
from ..query.columns import visible_schema
from .key_changes import KeyChanges
from .stored_rows import TableSide, distinct, identity
from .versions import Ancestry, StageVersions, ancestry

VERSION_BYTES = 64 << 10
"""Reading a manifest is worth so many bytes of SSTs, in time."""


def changes_between(
    one: TableSide, other: TableSide, shared: Ancestry, names: Sequence[str], *, tolerant: bool = False
) -> KeyChanges:
    """All keys whose rows differ, and some whose rows are the same, each once, with their rows on both sides.

    The two have the same key columns; `shared` is what they have in common, `names` the value columns to compare,
    `tolerant` as of `KeyChanges.between`.
    """
    sides = one, other
    there = [{identity(sst) for sst in side.ssts} for side in sides]
    own = [
        [sst for sst in side.ssts if identity(sst) not in theirs]
        for side, theirs in zip(sides, reversed(there), strict=True)
    ]
    # What each wrote since they forked, tombstones included.
    written = [
        side.newest((sst for sst in ssts if sst.seq_max > shared.seq), shared.seq + 1, values=True)
        for side, ssts in zip(sides, own, strict=True)
    ]
    # What expired between the two clocks, as stored by the side whose clock is behind: it has not dropped these.
    early, late = sorted(sides, key=lambda side: side.clock_ms)
    new = {sst for ssts in own for sst in ssts if sst.seq_min > shared.seq}
    expired = (
        early.stored(sst, EXPIRES, early.clock_ms + 1, late.clock_ms)
        for sst in early.ssts
        if sst not in new and ttl.shown_rows(sst, early.clock_ms) != ttl.shown_rows(sst, late.clock_ms)
    )
    parts = (*written, *_removed_keys(sides, own, shared), *expired)
    keys = distinct(pa.concat_tables([part.select([HASH, *one.key]) for part in parts]))
    # Rows above these need not be looked up: none of the same key is newer.
    old = max([shared.seq, *(sst.seq_max for sst in one.ssts if identity(sst) in there[1])])
    known = (rows.filter(pc.greater(rows.column(SEQ), old)) for rows in written)
    return _rows_of(keys, sides, names, known, tolerant=tolerant)


def _rows_of(
    keys: pa.Table,
    sides: Sequence[TableSide],
    names: Sequence[str],
    known: Iterable[pa.Table | None] = (None, None),
    *,
    tolerant: bool = False,
) -> KeyChanges:
    """The rows of these keys (`_hash` and key columns) on two sides; `known` are rows of theirs that are known."""
    found = (side.look_up(keys, names, rows) for side, rows in zip(sides, known, strict=True))
    (before, was), (after, is_there) = found
    return KeyChanges.between(keys.drop_columns([HASH]), before, after, was, is_there, tolerant=tolerant)


def _removed_keys(
    sides: tuple[TableSide, TableSide], own: Sequence[Sequence[Sst]], shared: Ancestry
) -> Iterator[pa.Table]:
    """Keys that one side may have removed without a trace in its SSTs, while the other still has them.

    By what the versions in between wrote; by comparing what is stored of older rows, where that is less, or where those
    versions were collected. `own` has of each side the SSTs that the other has not.
    """
    seq = shared.seq
    older = [[sst for sst in ssts if sst.seq_min <= seq] for ssts in own]
    # What a side has of a key in an SST of both, the other has too: it has dropped nothing there.
    at_stake = [
        (side, branch)
        for side, branch, theirs in zip(sides, shared.branches, reversed(older), strict=True)
        if theirs and branch
    ]
    if not at_stake:
        return
    versions = sum(part.up_to - part.after for _, branch in at_stake for part in branch)
    stored_bytes = sum(sst.bytes for ssts in older for sst in ssts)
    if versions * VERSION_BYTES <= stored_bytes:
        found = [_gone(side, branch, seq) for side, branch in at_stake]
        if None not in found:
            yield from chain.from_iterable(each or () for each in found)
            return
    # The keys whose newest older row is not the same for both, in the SSTs that only one of them has.
    newest = (side.newest(ssts, 0, seq).select([HASH, *side.key, SEQ]) for side, ssts in zip(sides, older, strict=True))
    rows = pa.concat_tables(newest)
    # By key and `_seq`: a row of both comes twice.
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.drop_columns([HASH]))
    repeated = np.append(repeats[1:], False)
    yield rows.take(pa.array(order[~repeats & ~repeated])).select([HASH, *sides[0].key])


def _gone(side: TableSide, branch: Sequence[StageVersions], seq: int) -> list[pa.Table] | None:
    """The keys that versions of a branch deleted, or wrote rows of that have expired, if these rows are not there now.

    None when one of these versions was collected.
    """
    manifests = [*chain.from_iterable(part.manifests() for part in branch)]
    if None in manifests:
        return None
    there = {identity(sst) for sst in side.ssts}
    written = {
        identity(sst): sst
        for manifest in manifests
        for sst in (manifest.ssts if manifest is not None else ())
        if sst.level == 0 and sst.seq_max > seq and (sst.tombstones or ttl.may_have_expired(sst, side.clock_ms))
    }
    rows = (side.stored(sst, SEQ, seq + 1, sst.seq_max) for name, sst in written.items() if name not in there)
    return [each.filter(pa.array(side.hidden(each))).select([HASH, *side.key]) for each in rows]


def changed_keys(
    store: ObjectStore,
    cache: SstCache,
    before: Manifest | None,
    after: Manifest,
    rows: pa.Table,
    shared: Ancestry | None = None,
) -> KeyChanges | None:
    """The keys that a commit turned bad, None for a stage without a table.

    It made the version `after` of `before`, None when the stage had none. If the rows that the predicate returned have
    all key columns, their keys are meant, in their order; else all whose row the commit changed, those that expired
    with it included. `shared` is what the two have in common, where they are not versions of one line.
    """
    table = after.table
    if table is None:
        return None
    earlier = TableSide(store, cache, table, before, before.clock_ms if before is not None else 0)
    later = TableSide(store, cache, table, after, after.clock_ms)
    keys = _named_keys(rows, table)
    shown = [name for name in visible_schema(table).names if name not in earlier.key]
    if keys is not None:
        return replace(_rows_of(keys, (earlier, later), shown), named=True)
    if shared is None:
        shared = ancestry((store, before), (store, after)) if before is not None else Ancestry()
    return changes_between(earlier, later, shared, shown).changed().in_order()


def _named_keys(rows: pa.Table, table: Table) -> pa.Table | None:
    """The keys in a predicate's result, each once, with `_hash`; None if not all are there, in types that fit."""
    schema = arrow_schema(table.key)
    if not set(schema.names) <= set(rows.schema.names):
        return None
    try:
        keys = normalise_keys(rows.select(schema.names).cast(schema), schema.names)
    except pa.ArrowException:
        # Another shape (a list, a struct), or a text that is no number: the query gave the name to something else.
        return None
    return distinct(keys.add_column(0, HASH, pa.array(hash_keys(keys, schema.names))))
