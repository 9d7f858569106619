"""Keys that were written and are stored no more.

A merge that includes the oldest run forgets the keys whose newest row is a tombstone, or has expired: with that row go
all that it hid. So the SSTs of a later version need not show that a key was removed. What shows it is what batches
wrote in between.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.read.range_reads import at_once
from ...store.sst.expiry import expired
from ...store.sst.hashing import sort_keys
from ...store.sst.ttl import may_have_expired
from ...store.sst.types import HASH, OP, SEQ, TOMBSTONE
from ...store.versions import history, horizon
from ...store.versions.manifest import Manifest, Sst
from .ancestry import Ancestry, Stretch
from .side import Side, identity, newest

VERSION_BYTES = 64 << 10
"""Reading a manifest is worth so many bytes of SSTs, in time."""


def removed_keys(sides: tuple[Side, Side], own: Sequence[Sequence[Sst]], shared: Ancestry) -> Iterator[pa.Table]:
    """Keys that one side may have removed without a trace in its SSTs, while the other still has them.

    By what the versions in between wrote; by comparing what is stored of older rows, where that is less, or where those
    versions were collected.

    Args:
        sides: the two sides.
        own: of each side, the SSTs that the other has not.
        shared: what the two have in common.

    Raises:
        Corruption: an SST or manifest is missing or damaged.
        Unavailable: a store did not answer.
    """
    seq = shared.seq
    older = [[sst for sst in ssts if sst.seq_min <= seq] for ssts in own]
    # What a side has of a key in an SST of both, the other has too: it has dropped nothing there.
    at_stake = [
        (side, way) for side, way, theirs in zip(sides, shared.ways, reversed(older), strict=True) if theirs and way
    ]
    if not at_stake:
        return
    versions = sum(stretch.up_to - stretch.after for _, way in at_stake for stretch in way)
    stored_bytes = sum(sst.bytes for ssts in older for sst in ssts)
    if versions * VERSION_BYTES <= stored_bytes:
        found = [_gone(side, way, seq) for side, way in at_stake]
        if None not in found:
            yield from chain.from_iterable(each or () for each in found)
            return
    yield _moved(sides, older, seq)


def _gone(side: Side, way: Sequence[Stretch], seq: int) -> list[pa.Table] | None:
    """The keys that versions on the way deleted, or wrote rows of that have expired, if these rows are not there now.

    None when a version on the way was collected.
    """
    manifests = list(chain.from_iterable(map(_manifests, way)))
    whole = [manifest for manifest in manifests if manifest is not None]
    # A manifest that is collectable may still be there when its SSTs are gone.
    if len(whole) < len(manifests) or any(map(_is_thinned, way)):
        return None
    there = {identity(sst) for sst in side.ssts}
    written = {
        identity(sst): sst
        for manifest in whole
        for sst in manifest.ssts
        if sst.level == 0 and sst.seq_max > seq and (sst.tombstones or may_have_expired(sst, side.clock_ms))
    }
    return [_taken(side, sst, seq) for name, sst in written.items() if name not in there]


def _manifests(stretch: Stretch) -> Iterable[Manifest | None]:
    """The versions of a stretch, None for each that is not there."""
    numbers = range(stretch.after + 1, stretch.up_to + 1)
    return at_once().map(history.find, repeat(stretch.store), repeat(stretch.app), repeat(stretch.stage), numbers)


def _is_thinned(stretch: Stretch) -> bool:
    limit = horizon.newest(stretch.store, stretch.app)
    numbers = range(stretch.after + 1, stretch.up_to + 1)
    return not all(limit.allows(stretch.stage, number) for number in numbers)


def _taken(side: Side, sst: Sst, seq: int) -> pa.Table:
    rows = side.stored(sst, SEQ, seq + 1, sst.seq_max)
    tombstones, gone = np.asarray(pc.equal(rows.column(OP), TOMBSTONE)), expired(rows, side.clock_ms)
    taken = tombstones if gone is None else tombstones | gone
    return rows.filter(pa.array(taken)).select([HASH, *side.key])


def _moved(sides: tuple[Side, Side], older: Sequence[Sequence[Sst]], seq: int) -> pa.Table:
    """The keys whose newest older row is not the same for both, in the SSTs that only one of them has."""
    one, other = (_newest(side, ssts, seq) for side, ssts in zip(sides, older, strict=True))
    rows = pa.concat_tables([one, other])
    # By key and `_seq`: a row of both comes twice.
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.drop_columns([HASH]))
    again = np.append(repeats[1:], False)
    return rows.take(pa.array(order[~repeats & ~again])).select([HASH, *sides[0].key])


def _newest(side: Side, ssts: Sequence[Sst], seq: int) -> pa.Table:
    """The newest row of each key among those up to a `_seq`: `_hash`, key columns and `_seq`."""
    newest_first = sorted(ssts, key=lambda sst: -sst.seq_max)
    rows = pa.concat_tables([side.no_rows(), *(side.stored(sst, SEQ, 0, seq) for sst in newest_first)])
    return newest(rows, side.key).select([HASH, *side.key, SEQ])
