"""Search for the smallest set of source records that gives a row, by replays of the batches that wrote the row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ....snapshot.bisect.explained import MinimalRecords
from ....snapshot.bisect.verdict import UnprovedRecord
from ....snapshot.cut.graph import Cut
from ....state.failing import find_smallest_failing
from ....store.versions.manifest import Manifest
from ..replay.record import IsAsCommitted
from ..replay.what_if import BadBatch, PartRecord, group_by_part
from .fold import KeyFold
from .walk import RowWalk

_MAX_FOLDED, _MAX_REPLAYED = 30_000, 300
"""Maximum number of replayed batches in the search for the smallest set: folded in memory, or by Spark.

The search by size and the search by delta debugging each have this limit. A test of one set replays all batches that
the walk has reached.
"""


def minimal_records(walk: RowWalk, newest: Manifest, key: pa.Table) -> MinimalRecords:
    """Return the smallest set of source records that gives the row of a key.

    The records are chosen from the source records that the walk has reached. `newest` is the version whose batch wrote
    the row. Raises `UnprovedRecord` if the walk lacks records, or if a replay of all records does not give the row;
    also raises the errors of replays.
    """
    if walk.lacking:
        raise UnprovedRecord(f"not all records of the row are known: {walk.lacking}")
    root = walk.batches.open(newest)
    predicate = IsAsCommitted.of(walk.program, newest, key)
    search = BadBatch(walk.batches, predicate, Cut(newest.app, {newest.stage: newest}), root)
    items = sorted(dict.fromkeys(walk.sources), key=_order)
    fold = KeyFold.open(walk.batches, newest, key)
    tried = 0

    def gives_row(some: Sequence[PartRecord]) -> bool:
        nonlocal tried
        tried += 1
        chosen = group_by_part(some)
        return fold.gives(predicate.row, chosen) if fold is not None else search.is_bad(chosen)

    if not search.is_bad(group_by_part(items)):
        raise UnprovedRecord(f"a replay of the {len(items):,} records does not give the row")
    max_tries = (_MAX_FOLDED if fold is not None else _MAX_REPLAYED) // len(walk.batches.opened)
    records, is_smallest, is_minimal = find_smallest_failing(items, gives_row, max_tries=max_tries)
    if fold is not None and not search.is_bad(group_by_part(records)):
        raise UnprovedRecord("the smallest set gives one row in memory, and another in a replay of its batches")
    locations = tuple(part.batch.address(number) for part, number in records)
    return MinimalRecords(locations, is_smallest, is_minimal, tried)


def _order(item: PartRecord) -> tuple[int, str, int, int]:
    part, number = item
    address = part.batch.address(number)
    return part.batch.time_ms(number), address.topic, address.partition, address.offset
