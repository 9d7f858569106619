"""The keys whose rows may differ between two versions, found without a look at what both have.

A key's newest row decides what a version shows of it. Where it lies in an SST that both versions have, and neither has
a newer one elsewhere, both show the same. So candidates come from the SSTs that one of them has for itself; and of
these from rows written after the two parted, because compaction rewrites rows and keeps their `_seq`. What is left are
rows that went away: removed and forgotten (`dropped`), or expired by one version's clock and not by the other's.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst import ttl
from ...store.sst.types import EXPIRES, HASH, SEQ
from ...store.versions.manifest import Sst
from .ancestry import Ancestry
from .dropped import removed_keys
from .key_changes import KeyChanges
from .side import Side, distinct, identity, newest


def changes_between(one: Side, other: Side, shared: Ancestry, names: Sequence[str]) -> KeyChanges:
    """All keys whose rows differ, and some whose rows are the same, each once, with their rows on both sides.

    Args:
        one: one of the two versions, which have the same key columns.
        other: the other one.
        shared: what the two have in common.
        names: the value columns to compare.

    Raises:
        Corruption: an SST or manifest is missing or damaged.
        Unavailable: a store did not answer.
    """
    sides = one, other
    there = [{identity(sst) for sst in side.ssts} for side in sides]
    own = [
        [sst for sst in side.ssts if identity(sst) not in theirs]
        for side, theirs in zip(sides, reversed(there), strict=True)
    ]
    written = [_written(side, ssts, shared.seq) for side, ssts in zip(sides, own, strict=True)]
    parts = [*written, *removed_keys(sides, own, shared), *_expired(sides, own, shared.seq)]
    keys = distinct(pa.concat_tables([part.select([HASH, *one.key]) for part in parts]))
    # Rows above these need not be looked up: none of the same key is newer.
    old = max([shared.seq, *(sst.seq_max for sst in one.ssts if identity(sst) in there[1])])
    known = (rows.filter(pc.greater(rows.column(SEQ), old)) for rows in written)
    return rows_of(keys, *zip(sides, known, strict=True), names=names)


def rows_of(
    keys: pa.Table, one: tuple[Side, pa.Table | None], other: tuple[Side, pa.Table | None], *, names: Sequence[str]
) -> KeyChanges:
    """The rows of these keys (`_hash` and key columns) on two sides, each with what is known already, or None."""
    before, was = one[0].look_up(keys, names, one[1])
    after, is_there = other[0].look_up(keys, names, other[1])
    return KeyChanges.between(keys.drop_columns([HASH]), before, after, was, is_there)


def _written(side: Side, ssts: Sequence[Sst], seq: int) -> pa.Table:
    """What a side wrote since they parted: the newest row of each key, with its values, tombstones included."""
    newest_first = sorted((sst for sst in ssts if sst.seq_max > seq), key=lambda sst: -sst.seq_max)
    found = (side.stored(sst, SEQ, seq + 1, sst.seq_max, values=True) for sst in newest_first)
    return newest(pa.concat_tables([side.no_rows(values=True), *found]), side.key)


def _expired(sides: tuple[Side, Side], own: Sequence[Sequence[Sst]], seq: int) -> Iterator[pa.Table]:
    """What expired between the two clocks, as stored by the side whose clock is behind: it has not dropped these."""
    early, late = sorted(sides, key=lambda side: side.clock_ms)
    written = {sst for ssts in own for sst in ssts if sst.seq_min > seq}
    for sst in early.ssts:
        if sst not in written and ttl.shown_rows(sst, early.clock_ms) != ttl.shown_rows(sst, late.clock_ms):
            yield early.stored(sst, EXPIRES, early.clock_ms + 1, late.clock_ms)
