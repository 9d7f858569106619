"""An operation before a bad batch: records that a reset read again, or a row that somebody had edited."""

from __future__ import annotations

import pyarrow.compute as pc

from ....snapshot.bisect.causes import Cause, operation
from ....snapshot.bisect.verdict import Guilty
from ....state.failing import RECORD
from ....store.sst.hashing import hash_keys
from ....store.sst.types import arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .bad_commit import BadCommit, number_of
from .other_batches import OtherBatches


def of_reset(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """The reset with which the record that was found was read again; None where it was read once.

    The first time it left the moment good, or that would be the bad commit.
    """
    if guilty.message is None:
        return None
    store, app, at = bad.program.store, bad.verdict.app, guilty.message.address
    reader = guilty.hops[-1]
    after = history.read(store, app, reader.stage, reader.version)
    for read in after.inputs.values():
        for reset in reversed(read.resets) if read.topic == at.topic else ():
            spans = [(end, start) for start, end in zip(reset.starts, reset.ends, strict=True)]
            first, last = spans[at.partition] if at.partition < len(spans) else (0, 0)
            if reset.version < after.version and first <= at.offset < last:
                then = f"; {bad.commit.stage}@v{bad.commit.version} is made of records that were read again after it"
                made = history.find(store, app, reader.stage, reset.version)
                return operation(store, made, then=then) if made is not None else None
    return None


def of_edit(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """The edit of the row that the record was merged into; None where the batch is bad upon the row before it, too."""
    keys = bad.verdict.keys
    if guilty.message is None or keys is None or not keys.named:
        return None
    through = frozenset((hop.stage, hop.version) for hop in guilty.hops)
    for hop in guilty.hops:
        replay = bad.replay(hop.stage, hop.version)
        number = number_of(replay, hop.record)
        if replay.shape.bound is None or not replay.knows_records or number is None:
            continue
        rows = replay.rows()
        key = arrow_schema(replay.table.key)
        mine = rows.filter(pc.equal(rows[RECORD], number)).select(key.names).cast(key)
        if not mine.num_rows:
            continue
        seqs = replay.stored.of_keys(hash_keys(mine, key.names), mine)[2]
        edit = _edit(bad, hop.stage, int(seqs.max()))
        if edit is None or (before := history.find(bad.program.store, edit.app, edit.stage, edit.version - 1)) is None:
            continue
        swapped = OtherBatches(bad.program, upon={(hop.stage, hop.version): before}, through=through)
        if not bad.bad_with(swapped.manifest(bad.commit)):
            then = f"; upon the row as it was before it, {bad.commit.stage}@v{bad.commit.version} is good"
            return operation(bad.program.store, edit, then=then)
    return None


def _edit(bad: BadCommit, stage: str, seq: int) -> Manifest | None:
    """The edit that wrote rows of a `_seq`; None where a batch did."""
    found = history.find(bad.program.store, bad.verdict.app, stage, seq) if seq else None
    return found if found is not None and found.edited is not None and found.row_seq == seq else None
