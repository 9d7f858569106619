"""Choice of the snapshot of a table that belongs to an earlier moment of the app. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .protocol import Mark, TableCommit


class Rollback(NamedTuple):
    """A return to an earlier snapshot."""

    snapshot: str
    """Snapshot to return to; empty for a table without rows."""
    kept: Mark | None
    """Newest version of the sink that stays; None if all are undone."""
    undone: tuple[TableCommit, ...]
    """Commits of the sink that the return undoes."""
    others: tuple[TableCommit, ...]
    """Commits of others that changed rows since, which the return would undo as well."""


def plan_rollback(log: Sequence[TableCommit], sink: str, is_current: Callable[[Mark], bool]) -> Rollback | None:
    """Return the snapshot without the sink's undone versions; None if the newest version is not undone.

    `log` is the table's history; `is_current` tells for a version if it is part of the stage's history. The result is
    the snapshot before the first undone version after the newest current one, so it has what others wrote before it.
    """
    own = [(place, commit.mark) for place, commit in enumerate(log) if commit.mark and commit.mark.sink == sink]
    if not own or is_current(own[-1][1]):
        return None
    kept = next((place for place, mark in reversed(own) if is_current(mark)), -1)
    begin = next(place for place, _ in own if place > kept)
    places = {place for place, _ in own}
    since = (commit for place, commit in enumerate(log) if place > begin and place not in places)
    undone = (log[place] for place, _ in own if place > kept)
    others = tuple(commit for commit in since if commit.changes_rows)
    return Rollback(log[begin].base, log[kept].mark if kept >= 0 else None, tuple(undone), others)


def snapshot_of(log: Sequence[TableCommit], sink: str, version: int, is_current: Callable[[Mark], bool]) -> str:
    """Return the table's snapshot after a version of the stage; empty if the table has no version up to it."""
    upto = [
        commit
        for commit in log
        if commit.mark and commit.mark.sink == sink and commit.mark.version <= version and is_current(commit.mark)
    ]
    return upto[-1].snapshot if upto else ""
