"""A record that came twice: another one with the same payload reached the bad key before it."""

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
"""Earlier changes of the key whose input is looked through, the newest."""
MAX_RECORDS = 500_000
"""Records that are looked through."""


def of_duplicate(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """The cause that a record came twice; None where no other record, or several, have its payload.

    A payload without bytes says nothing. Reads the input of the batch, and of those that changed the key before.
    """
    if (copy := guilty.message) is None or not copy.value:
        return None
    same: list[Address] = []
    for window in dict.fromkeys(_windows(bad, guilty)):
        for address in _alike(bad, window, copy):
            if address not in same:
                same.append(address)
            if len(same) > 1:
                return None
    if len(same) != 1:
        return None
    (original,) = same
    in_batch = _in_batch(bad, original)
    if in_batch and guilty.hops[0].alone:
        # Each of them is bad by itself.
        return None
    return Cause(
        "duplicate",
        proved=guilty.proved,
        sentence=f"{copy.address} is a copy of {original}, with the same key and value: it turned bad with the second",
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
    """The windows of users' topics that the bad commit read, and earlier ones that changed the key of the record."""
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
        changes = (each for each in key_changes(versions, stored, now_ms()) if each.version < commit.version)
        for change in islice(changes, MAX_CHANGES):
            if change.by_batch:
                after = history.read(store, commit.app, commit.stage, change.version)
                low = history.find(store, commit.app, commit.stage, change.after_version)
                for window in trace(store, low, after).sources:
                    if copy is not None and window.topic == copy.address.topic:
                        yield window
    except SlackwaterError:
        return


def _alike(bad: BadCommit, window: Window, copy: SourceMessage) -> Iterator[Address]:
    """Other records of a window with the payload of this one."""
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
