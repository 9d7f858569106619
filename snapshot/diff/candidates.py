"""The keys whose rows may differ between two versions, found without a look at what both have.

A key's newest row decides what a version shows of it. Where it lies in an SST that both versions have, and neither has
a newer one elsewhere, both show the same. So candidates come from the SSTs that one of them has for itself; and of
these from rows written after the two parted, because compaction rewrites rows and keeps their `_seq`. What is left are
rows that went away: removed and forgotten (`dropped`), or expired by one version's clock and not by the other's.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...store.sst import ttl
from ...store.sst.types import EXPIRES, HASH, SEQ
from ...store.versions.manifest import Sst
from .ancestry import Ancestry
from .dropped import removed_keys
from .side import Side, distinct, identity


def candidates(one: Side, other: Side, shared: Ancestry) -> pa.Table:
    """`_hash` and key columns of all keys whose rows differ, and of some others; each once.

    Args:
        one: one of the two versions, which have the same key columns.
        other: the other one.
        shared: what the two have in common.

    Raises:
        Corruption: an SST or manifest is missing or damaged.
        Unavailable: a store did not answer.
    """
    sides = one, other
    names = [{identity(sst) for sst in side.ssts} for side in sides]
    own = [
        [sst for sst in side.ssts if identity(sst) not in theirs]
        for side, theirs in zip(sides, reversed(names), strict=True)
    ]
    parts = [one.no_rows(), *_written(sides, own, shared.seq), *removed_keys(sides, own, shared)]
    parts += _expired(sides, own, shared.seq)
    return distinct(pa.concat_tables([part.select([HASH, *one.key]) for part in parts]))


def _written(sides: tuple[Side, Side], own: Sequence[Sequence[Sst]], seq: int) -> Iterator[pa.Table]:
    """What either wrote since they parted, tombstones included."""
    for side, ssts in zip(sides, own, strict=True):
        for sst in ssts:
            if sst.seq_max > seq:
                yield side.stored(sst, SEQ, seq + 1, sst.seq_max)


def _expired(sides: tuple[Side, Side], own: Sequence[Sequence[Sst]], seq: int) -> Iterator[pa.Table]:
    """What expired between the two clocks, as stored by the side whose clock is behind: it has not dropped these."""
    early, late = sorted(sides, key=lambda side: side.clock_ms)
    written = {sst for ssts in own for sst in ssts if sst.seq_min > seq}
    for sst in early.ssts:
        if sst not in written and ttl.shown_rows(sst, early.clock_ms) != ttl.shown_rows(sst, late.clock_ms):
            yield early.stored(sst, EXPIRES, early.clock_ms + 1, late.clock_ms)
