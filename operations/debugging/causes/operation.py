"""A manual operation as the cause: records that a reset read again, or a row that was edited by hand."""

from __future__ import annotations

import pyarrow.compute as pc

from ....snapshot.bisect.causes import Cause, operation
from ....snapshot.bisect.verdict import Guilty
from ....state.failing import RECORD
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .bad_commit import BadCommit, number_of
from .other_batches import OtherBatches


def of_reset(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return the reset that made the app read the suspected record again; None if the record was read once.

    When the record was first read, the moment stayed good; otherwise that commit would be the bad one.
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
                then = f"; {bad.commit.stage}@v{bad.commit.version} was made from records that it re-read"
                reset_version = history.find(store, app, reader.stage, reset.version)
                return operation(store, reset_version, then=then) if reset_version is not None else None
    return None


def of_edit(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return the edit of the row that the record was merged into; None if the batch is bad without the edit as well."""
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
        record_rows = rows.filter(pc.equal(rows[RECORD], number)).select(key.names).cast(key)
        if not record_rows.num_rows:
            continue
        seqs = replay.stored.of_keys(hash_keys(record_rows, key.names), record_rows)[2]
        edit = _edit(bad, hop.stage, int(seqs.max()))
        if (
            edit is None
            or (unedited := history.find(bad.program.store, edit.app, edit.stage, edit.version - 1)) is None
        ):
            continue
        swapped = OtherBatches(bad.program, upon={(hop.stage, hop.version): unedited}, through=through)
        if not bad.bad_with(swapped.manifest(bad.commit)):
            then = f"; without this edit, {bad.commit.stage}@v{bad.commit.version} is good"
            return operation(bad.program.store, edit, then=then)
    return None


def _edit(bad: BadCommit, stage: str, seq: int) -> Manifest | None:
    """Return the edit that wrote rows with this `_seq`; None if a batch wrote them."""
    manifest = history.find(bad.program.store, bad.verdict.app, stage, seq) if seq else None
    return manifest if manifest is not None and manifest.edited is not None and manifest.row_seq == seq else None
