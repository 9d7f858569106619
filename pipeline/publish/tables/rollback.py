"""Choice of the table snapshot that belongs to an earlier moment of the app. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .protocol import Mark, TableCommit


class Rollback(NamedTuple):
    """Return of a table to an earlier snapshot."""

    snapshot: str
    """Target snapshot; empty for a table without rows."""
    kept: Mark | None
    """Newest version of the sink that is kept; None if all versions are undone."""
    undone: tuple[TableCommit, ...]
    """Commits of the sink that the rollback undoes."""
    others: tuple[TableCommit, ...]
    """Later commits by other writers that changed rows. The rollback would undo these commits, too."""


def plan_rollback(log: Sequence[TableCommit], sink: str, is_current: Callable[[Mark], bool]) -> Rollback | None:
    """Return the rollback that undoes the sink's undone versions; None if the newest version is not undone.

    `log` is the table's history. `is_current` returns True for a version that is part of the stage's history. The
    target is the snapshot right before the first undone version that follows the newest current version. So earlier
    commits by other writers are kept.
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
    """Return the table's newest snapshot with versions up to `version` of the stage; empty if there is none."""
    upto = [
        commit
        for commit in log
        if commit.mark and commit.mark.sink == sink and commit.mark.version <= version and is_current(commit.mark)
    ]
    return upto[-1].snapshot if upto else ""
