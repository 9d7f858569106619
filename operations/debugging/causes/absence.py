"""A record that did not come: bad keys that no record of the batch made bad, but what they are compared with."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ....snapshot.bisect.causes import Cause, Untouched, absence, unknown
from ....snapshot.bisect.verdict import Guilty
from .bad_commit import BadCommit, number_of

FOLLOWING = 2
"""Batches after the bad one that are replayed without a record, to see whether it goes bad all the same."""


def of_absence(bad: BadCommit, guilty: Guilty, untouched: Untouched | None) -> Cause | None:
    """The cause that no record of the bad keys came; None where the record that was found is behind it.

    A record of another key is: where the batch, and those after it, are good without it. Raises as a replay does.
    """
    if guilty.message is None:
        return None
    of = untouched or _not_touched(bad, guilty)
    if of is None:
        return None
    store, verdict = bad.program.store, bad.verdict
    without = bad.without(guilty.message.address)
    if bad.bad_with(without):
        how = "; without the record of another key that turned it bad first, others of the batch turn it bad"
        return absence(store, verdict, of, proved=True, how=how)
    turns_bad, batches = bad.turns_bad_after(without, FOLLOWING)
    if turns_bad:
        how = "; without the record of another key that turned it bad first, the next batches do"
        return absence(store, verdict, of, proved=True, how=how)
    if batches or not _is_last(bad, guilty):
        return None
    how = "; it turned bad with the last record that was read, of another key, so that may be at fault as well"
    return absence(store, verdict, of, proved=False, how=how)


def of_other_rows(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """That nothing is known, where the query names no key, and the record that was found may be any of many.

    The rows that it wrote are not bad by themselves, but only beside others of the table, and without it other records
    turn it bad. None elsewhere. Raises as a replay does.
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


def _not_touched(bad: BadCommit, guilty: Guilty) -> Untouched | None:
    """The bad keys, where the record that was found changed none of their rows."""
    named, of_record = bad.verdict.keys, guilty.keys
    if named is None or not named.named or not len(named) or of_record is None:
        return None
    return Untouched(named.keys, bad.commit) if of_record.named and not len(of_record) else None


def _is_last(bad: BadCommit, guilty: Guilty) -> bool:
    """Whether the record that was found is the last that its batch read."""
    top = guilty.hops[-1]
    replay = bad.replay(top.stage, top.version)
    return number_of(replay, top.record) == replay.count - 1
