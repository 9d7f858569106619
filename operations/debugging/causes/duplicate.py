"""A duplicate record as the cause: an earlier record with the same payload reached the bad key before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ....common.instants import now_ms
from ....errors import SlackwaterError
from ....snapshot.bisect.causes import Cause
from ....snapshot.bisect.verdict import Address, Guilty, SourceMessage
from ....snapshot.cut.lineage import Window, trace
from ....snapshot.diff.key_history import VersionList, key_changes
from ....snapshot.diff.stored_rows import StoredKey
from ....store.sst.hashing import hash_keys
from ....store.versions import history
from .bad_commit import BadCommit

MAX_CHANGES = 64
"""Newest earlier changes of the key whose input is searched."""
MAX_RECORDS = 500_000
"""Maximum size of a window that is searched, in records."""


def of_duplicate(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return the cause that a record is a duplicate; None unless exactly one other record has the same payload.

    Records without a value are not compared. Reads the input of the batch, and of earlier batches that changed the key.
    """
    if (copy := guilty.message) is None or not copy.value:
        return None
    originals: list[Address] = []
    for window in dict.fromkeys(_windows(bad, guilty)):
        for address in _same_payload(bad, window, copy):
            if address not in originals:
                originals.append(address)
            if len(originals) > 1:
                return None
    if len(originals) != 1:
        return None
    (original,) = originals
    in_batch = _in_batch(bad, original)
    if in_batch and guilty.hops[0].alone:
        # Both records are bad by themselves.
        return None
    return Cause(
        "duplicate",
        proved=guilty.proved,
        sentence=f"{copy.address} is a copy of {original}, with the same key and value: the second one turned it bad",
        record=copy.address,
        records=(original, copy.address),
        evidence={"original": str(original), "copy": str(copy.address)},
    )


def _in_batch(bad: BadCommit, address: Address) -> bool:
    return any(
        (window.topic, window.partition) == (address.topic, address.partition)
        and window.start <= address.offset < window.end
        for window in bad.verdict.lineage.sources
    )


def _windows(bad: BadCommit, guilty: Guilty) -> Iterator[Window]:
    """Yield the windows of users' topics that the bad commit read, and those of earlier changes of the record's key."""
    copy = guilty.message
    for window in bad.verdict.lineage.sources:
        if copy is not None and window.topic == copy.address.topic:
            yield window
    store, commit = bad.program.store, bad.commit
    keys = guilty.keys if guilty.keys is not None and len(guilty.keys) else bad.verdict.keys
    if keys is None or not len(keys) or commit.table is None:
        return
    key = keys.keys.slice(0, 1)
    if key.column_names != [column.name for column in commit.table.key]:
        return
    versions = VersionList(store, commit.app, commit.stage, commit.stage)
    stored = StoredKey(store, bad.program.cache, key, int(hash_keys(key, key.column_names)[0]))
    try:
        changes = (change for change in key_changes(versions, stored, now_ms()) if change.version < commit.version)
        for change in islice(changes, MAX_CHANGES):
            if change.by_batch:
                after = history.read(store, commit.app, commit.stage, change.version)
                low = history.find(store, commit.app, commit.stage, change.after_version)
                for window in trace(store, low, after).sources:
                    if copy is not None and window.topic == copy.address.topic:
                        yield window
    except SlackwaterError:
        return


def _same_payload(bad: BadCommit, window: Window, copy: SourceMessage) -> Iterator[Address]:
    """Yield the other records of a window with the same payload."""
    program, at = bad.program, copy.address
    if window.end - window.start > MAX_RECORDS:
        return
    for messages in program.kafka.read(
        window.topic, window.partition, window.start, window.end, patience_s=program.patience_s
    ):
        for message in messages:
            address = Address(window.topic, window.partition, message.offset())
            if address != at and message.key() == copy.key and message.value() == copy.value:
                yield address
