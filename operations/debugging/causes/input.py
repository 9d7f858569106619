"""Tests if input caused a bad commit: a missing or duplicate record, re-read input after a reset, or an edit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow.compute as pc
from msgspec.structs import replace

from ....common.instants import now_ms
from ....errors import SlackwaterError
from ....snapshot.bisect.causes import Cause, UntouchedKeys, absence_cause, operation_cause, unknown_cause
from ....snapshot.bisect.verdict import RecordLocation, RecordPath, SourceRecord
from ....snapshot.cut.lineage import Window, trace
from ....snapshot.diff.key_history import VersionList, key_changes
from ....snapshot.diff.stored_rows import KeyReader
from ....state.failing import RECORD
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .bad_commit import BadCommit, CounterfactualReplay

MAX_LATER_BATCHES = 2
"""Maximum number of batches after the bad batch that are replayed without the suspected record."""


def find_absence_cause(bad: BadCommit, guilty: RecordPath, untouched: UntouchedKeys | None) -> Cause | None:
    """Return an `absence` cause if a missing record of the bad keys made the moment bad, else None.

    The suspected record must have a key that is not bad. The cause is proved if the moment turns bad even without the
    suspected record, in the bad batch or in one of the next `MAX_LATER_BATCHES`. Raises the errors of a replay.
    """
    if guilty.source_record is None:
        return None
    untouched_keys = untouched or _untouched_keys(bad, guilty)
    if untouched_keys is None:
        return None
    store, verdict = bad.program.store, bad.verdict
    without = bad.manifest_without(guilty.source_record.location)
    if bad.is_bad_with(without):
        details = (
            "; the first bad record has another key, and without it other records of the batch make the moment bad"
        )
        return absence_cause(store, verdict, untouched_keys, proved=True, suffix=details)
    turns_bad, batches = bad.replay_later_batches(without, MAX_LATER_BATCHES)
    if turns_bad:
        details = "; the first bad record has another key, and without it the next batches make the moment bad"
        return absence_cause(store, verdict, untouched_keys, proved=True, suffix=details)
    if batches or not _is_last_record(bad, guilty):
        return None
    details = "; the batch's last record, which has another key, made the moment bad, so it may be the cause instead"
    return absence_cause(store, verdict, untouched_keys, proved=False, suffix=details)


def find_replaceable_record_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return an `unknown` cause if the moment turns bad even without the suspected record, else None.

    Applies only to queries that return no key, and only if the rows written by the suspected record are good without
    other rows of the table. Raises the errors of a replay.
    """
    named, hop = bad.verdict.keys, guilty.hops[0]
    if guilty.source_record is None or (named is not None and named.from_predicate) or not hop.alone:
        return None
    replay = bad.replay(hop.stage, hop.version)
    number = replay.number_of(hop.record)
    if number is None or replay.shape.bound is None:
        return None
    alone = replay.with_previous(replace(replay.before, ssts=()))
    if bad.is_bad_with(alone.manifest(replay.merge(replay.rows(np.array([number]))))):
        return None
    without = bad.manifest_without(guilty.source_record.location)
    if not bad.is_bad_with(without) and not bad.replay_later_batches(without, MAX_LATER_BATCHES)[0]:
        return None
    return unknown_cause(
        "the moment is bad even without its first bad record, so the fault is in rows that this record did not write; "
        "search again with a query that returns the key columns, which shows the key that lacks a record"
    )


def _untouched_keys(bad: BadCommit, guilty: RecordPath) -> UntouchedKeys | None:
    named, of_record = bad.verdict.keys, guilty.keys
    if named is None or not named.from_predicate or not len(named) or of_record is None:
        return None
    return UntouchedKeys(named.keys, bad.commit) if of_record.from_predicate and not len(of_record) else None


def _is_last_record(bad: BadCommit, guilty: RecordPath) -> bool:
    top = guilty.hops[-1]
    replay = bad.replay(top.stage, top.version)
    return replay.number_of(top.record) == replay.count - 1


MAX_CHANGES = 64
"""Maximum number of earlier changes of the key for which the input is searched, newest first."""
MAX_RECORDS = 500_000


def find_duplicate_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return a `duplicate` cause if exactly one other record has the suspected record's key and value.

    Otherwise returns None. Records without a value are not compared. Reads the input of the bad batch, and of earlier
    batches that changed the key.
    """
    if (copy := guilty.source_record) is None or not copy.value:
        return None
    originals: list[RecordLocation] = []
    for window in dict.fromkeys(_windows_to_search(bad, guilty)):
        for address in _find_copies(bad, window, copy):
            if address not in originals:
                originals.append(address)
            if len(originals) > 1:
                return None
    if len(originals) != 1:
        return None
    (original,) = originals
    in_batch = _is_in_bad_batch(bad, original)
    if in_batch and guilty.hops[0].alone:
        # Both records are bad by themselves.
        return None
    return Cause(
        "duplicate",
        proved=guilty.proved,
        sentence=f"{copy.location} is a copy of {original}, with the same key and value: the copy made the moment bad",
        record=copy.location,
        records=(original, copy.location),
        evidence={"original": str(original), "copy": str(copy.location)},
    )


def _is_in_bad_batch(bad: BadCommit, address: RecordLocation) -> bool:
    return any(
        (window.topic, window.partition) == (address.topic, address.partition)
        and window.start <= address.offset < window.end
        for window in bad.verdict.lineage.sources
    )


def _windows_to_search(bad: BadCommit, guilty: RecordPath) -> Iterator[Window]:
    copy = guilty.source_record
    for window in bad.verdict.lineage.sources:
        if copy is not None and window.topic == copy.location.topic:
            yield window
    store, commit = bad.program.store, bad.commit
    keys = guilty.keys if guilty.keys is not None and len(guilty.keys) else bad.verdict.keys
    if keys is None or not len(keys) or commit.table is None:
        return
    key = keys.keys.slice(0, 1)
    if key.column_names != [column.name for column in commit.table.key]:
        return
    versions = VersionList(store, commit.app, commit.stage, commit.version)
    stored = KeyReader(store, bad.program.cache, key)
    try:
        changes = (change for change in key_changes(versions, stored, now_ms()) if change.version < commit.version)
        for change in islice(changes, MAX_CHANGES):
            if change.is_by_batch:
                after = history.read(store, commit.app, commit.stage, change.version)
                low = history.find(store, commit.app, commit.stage, change.after_version)
                for window in trace(store, low, after).sources:
                    if copy is not None and window.topic == copy.location.topic:
                        yield window
    except SlackwaterError:
        return


def _find_copies(bad: BadCommit, window: Window, copy: SourceRecord) -> Iterator[RecordLocation]:
    program, at = bad.program, copy.location
    if window.end - window.start > MAX_RECORDS:
        return
    for messages in program.kafka.read(
        window.topic, window.partition, window.start, window.end, patience_s=program.patience_s
    ):
        for message in messages:
            address = RecordLocation(window.topic, window.partition, message.offset())
            if address != at and message.key() == copy.key and message.value() == copy.value:
                yield address


def find_reset_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return the reset after which the app read the suspected record again; None if the record was read once.

    If the app read the record twice, the second read made the moment bad: otherwise the commit of the first read would
    be the first bad commit.
    """
    if guilty.source_record is None:
        return None
    store, app, at = bad.program.store, bad.verdict.app, guilty.source_record.location
    reader = guilty.hops[-1]
    after = history.read(store, app, reader.stage, reader.version)
    for read in after.inputs.values():
        for reset in reversed(read.resets) if read.topic == at.topic else ():
            spans = [(end, start) for start, end in zip(reset.starts, reset.ends, strict=True)]
            first, last = spans[at.partition] if at.partition < len(spans) else (0, 0)
            if reset.version < after.version and first <= at.offset < last:
                then = f"; {bad.commit.stage}@v{bad.commit.version} was made from records that it re-read"
                reset_version = history.find(store, app, reader.stage, reset.version)
                return operation_cause(store, reset_version, suffix=then) if reset_version is not None else None
    return None


def find_edit_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return an edit of the row that the suspected record changed, if the edit is the cause, else None.

    The edit is the cause if the batch is good without it. Only the row's newest change before the batch is examined.
    """
    keys = bad.verdict.keys
    if guilty.source_record is None or keys is None or not keys.from_predicate:
        return None
    through = frozenset((hop.stage, hop.version) for hop in guilty.hops)
    for hop in guilty.hops:
        replay = bad.replay(hop.stage, hop.version)
        number = replay.number_of(hop.record)
        if replay.shape.bound is None or not replay.knows_records or number is None:
            continue
        rows = replay.rows()
        key = arrow_schema(replay.table.key)
        record_rows = rows.filter(pc.equal(rows[RECORD], number)).select(key.names).cast(key)
        if not record_rows.num_rows:
            continue
        seqs = replay.stored.get_rows(hash_keys(record_rows, key.names), record_rows)[2]
        edit = _find_edit(bad, hop.stage, int(seqs.max()))
        if (
            edit is None
            or (unedited := history.find(bad.program.store, edit.app, edit.stage, edit.version - 1)) is None
        ):
            continue
        swapped = CounterfactualReplay(
            bad.program, replacement_versions={(hop.stage, hop.version): unedited}, replayed_batches=through
        )
        if not bad.is_bad_with(swapped.manifest(bad.commit)):
            then = f"; without this edit, {bad.commit.stage}@v{bad.commit.version} is good"
            return operation_cause(bad.program.store, edit, suffix=then)
    return None


def _find_edit(bad: BadCommit, stage: str, seq: int) -> Manifest | None:
    manifest = history.find(bad.program.store, bad.verdict.app, stage, seq) if seq else None
    return manifest if manifest is not None and manifest.edited is not None and manifest.row_seq == seq else None
