"""A missing record: keys that turned bad although no record of the batch changed them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ....snapshot.bisect.causes import Cause, Untouched, absence, unknown
from ....snapshot.bisect.verdict import Guilty
from .bad_commit import BadCommit, number_of

FOLLOWING = 2
"""Batches after the bad one to replay without the suspected record, to test if they turn bad too."""


def of_absence(bad: BadCommit, guilty: Guilty, untouched: Untouched | None) -> Cause | None:
    """Return the cause that a record for the bad keys is missing; None if the suspected record caused the change.

    A record of another key is the cause if the batch, and the batches after it, are good without that record. Raises as
    a replay does.
    """
    if guilty.message is None:
        return None
    untouched_keys = untouched or _untouched_keys(bad, guilty)
    if untouched_keys is None:
        return None
    store, verdict = bad.program.store, bad.verdict
    without = bad.without(guilty.message.address)
    if bad.bad_with(without):
        details = (
            "; a record of another key turned it bad first, but without that record, others in the batch turn it bad"
        )
        return absence(store, verdict, untouched_keys, proved=True, how=details)
    turns_bad, batches = bad.turns_bad_after(without, FOLLOWING)
    if turns_bad:
        details = "; a record of another key turned it bad first, but without that record, the next batches turn it bad"
        return absence(store, verdict, untouched_keys, proved=True, how=details)
    if batches or not _is_last(bad, guilty):
        return None
    details = "; the batch turned bad with its last record, of another key, so that record may be the cause instead"
    return absence(store, verdict, untouched_keys, proved=False, how=details)


def of_other_rows(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return an unknown cause if the query returns no key and the suspected record may be one of many; else None.

    This holds if the rows that the record wrote are bad only in combination with other rows of the table, and other
    records turn the batch bad without that record. Raises as a replay does.
    """
    named, hop = bad.verdict.keys, guilty.hops[0]
    if guilty.message is None or (named is not None and named.named) or not hop.alone:
        return None
    replay = bad.replay(hop.stage, hop.version)
    number = number_of(replay, hop.record)
    if number is None or replay.shape.bound is None:
        return None
    alone = replay.based_on(replace(replay.before, ssts=()))
    if bad.bad_with(alone.manifest(replay.merged(replay.rows(np.array([number])))[0])):
        return None
    without = bad.without(guilty.message.address)
    if not bad.bad_with(without) and not bad.turns_bad_after(without, FOLLOWING)[0]:
        return None
    return unknown(
        "it is bad by rows of the table that the first record with which it is bad did not touch, and without that "
        "record others turn it bad; a query that returns the key's columns tells of which key nothing came"
    )


def _untouched_keys(bad: BadCommit, guilty: Guilty) -> Untouched | None:
    """Return the bad keys if the suspected record changed none of their rows; else None."""
    named, of_record = bad.verdict.keys, guilty.keys
    if named is None or not named.named or not len(named) or of_record is None:
        return None
    return Untouched(named.keys, bad.commit) if of_record.named and not len(of_record) else None


def _is_last(bad: BadCommit, guilty: Guilty) -> bool:
    """Return True if the suspected record is the last one that its batch read."""
    top = guilty.hops[-1]
    replay = bad.replay(top.stage, top.version)
    return number_of(replay, top.record) == replay.count - 1
