"""Publishing of a sink's rows to a table, each version in one commit."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pyarrow as pa

from ....errors import Refused
from ....store.objects.protocol import ObjectStore
from ....store.versions import history
from ....store.versions.kinds import RECOVER
from ....store.versions.manifest import Manifest
from ....store.versions.published import PublishedPosition
from ...kafka.protocol import TransactionFailed
from ..targets import SinkProgress
from .lookup import is_version_of, sink_id
from .protocol import LakeTable, Mark
from .rollback import Rollback, plan_rollback

_log = logging.getLogger("slackwater")

_COMMITS_PER_COMPACTION = 10
_MAX_SMALL_FILES = 50
"""Maximum number of small files in a partition of a table before they are merged."""
_SHOWN = 3


@dataclass(slots=True)
class TableTarget:
    """Target that publishes to a table. The position is the newest version in the table.

    A sink that starts again, for example after a rewind, first rolls the table back to the newest version that is not
    undone.
    """

    max_rows: ClassVar[int] = 0

    table: LakeTable
    progress: SinkProgress
    app_id: int
    """Number that distinguishes this app from earlier apps of the same name."""
    accept_loss: bool = False
    _rows: list[pa.Table] = field(default_factory=list)
    _commits: int = 0

    def open(self) -> PublishedPosition:
        """Fence the previous publisher, and return the position in the table.

        Raises `Refused` if the table lost versions, or if a rollback would undo rows of other writers.
        """
        state = self.table.load(self._name, self.progress.sink.id)
        # A later runner may have loaded the table before. If it has not, its commits make those of this one fail.
        self.progress.check_epoch()
        place = self.progress.begin_position()
        if state.version > place.version:
            return self._position_at(state.version)
        if state.version:  # newer versions have no rows
            return place
        if place.rows and not self.accept_loss:
            raise Refused(
                f"{self.progress.title}: its table no longer has the rows up to v{place.version}: it was dropped, "
                "replaced or changed by hand",
                hint="run with --accept-loss to continue with newer rows only",
            )
        if state.has_commits:
            self._begin_period()
        return place

    def begin(self, version: int) -> None:
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def commit(self, place: PublishedPosition) -> None:
        if self._rows:  # none if the rows were skipped
            self.table.publish(self._mark(place.version), pa.concat_tables(self._rows))
            self._rows.clear()
            self._commits += 1
            if self._commits % _COMMITS_PER_COMPACTION == 0:
                self._compact()

    def close(self) -> None: ...

    @property
    def _name(self) -> str:
        claimed = self.progress.claimed
        return sink_id(claimed.app, self.app_id, claimed.stage, self.progress.name)

    def _mark(self, version: int) -> Mark:
        return Mark(self._name, self.progress.sink.id, version)

    def _position_at(self, version: int) -> PublishedPosition:
        claimed = self.progress.claimed
        sink = history.read(self.progress.store, claimed.app, claimed.stage, version).sinks[self.progress.name]
        return PublishedPosition(version, sink.end, sink.sent)

    def _begin_period(self) -> None:
        claimed, since = self.progress.claimed, self.progress.sink.since
        first = claimed
        if since != first.version:
            first = history.read(self.progress.store, first.app, first.stage, since)
        is_current = partial(is_version_of, self.progress.store, first, self.progress.name)
        kept_rows = _kept_rows(self.progress.store, first, self.progress.name)
        rollback = plan_rollback(self.table.log(), self._name, lambda mark: is_current(mark, kept_rows))
        if rollback is not None:
            self._check_reach(first, rollback, kept_rows)
            self._check_others(rollback)
            undone = [commit.mark.version for commit in rollback.undone if commit.mark]
            _log.warning(
                "%s: its table returns to snapshot %s, without v%d to v%d, which were undone",
                self.progress.title,
                rollback.snapshot or "none",
                min(undone),
                max(undone),
            )
        self.table.begin(self._mark(since), rollback.snapshot if rollback is not None else None)

    def _check_reach(self, first: Manifest, rollback: Rollback, kept_rows: int | None) -> None:
        """Raise `Refused` if the table's history lacks the newest version that has rows and is not undone."""
        to = next((rewind.to for rewind in reversed(first.rewinds) if not rewind.table_only), 0)
        if not to or self.accept_loss:
            return
        store, name, kept = self.progress.store, self.progress.name, rollback.kept
        then = history.find(store, first.app, first.stage, to)
        sink = then.sinks.get(name) if then is not None else None
        rows = kept_rows if kept_rows is not None else sink.sent if sink is not None else 0
        newest = history.find(store, first.app, first.stage, kept.version) if kept is not None else None
        if rows and (kept is None or (newest is not None and name in newest.sinks and newest.sinks[name].sent != rows)):
            raise Refused(
                f"{self.progress.title}: the history of its table no longer has the newest version up to "
                f"v{to}, to which the app was rewound: its snapshot was removed",
                hint="publish to another table, as a sink of another name=; without those rows: --accept-loss",
            )

    def _check_others(self, rollback: Rollback) -> None:
        if rollback.others and not self.accept_loss:
            shown = ", ".join(f"{commit.operation} {commit.snapshot}" for commit in rollback.others[:_SHOWN])
            raise Refused(
                f"{self.progress.title}: the rewind returns its table to snapshot {rollback.snapshot or 'none'}, but "
                f"{len(rollback.others)} later commits of others would be undone, too: {shown}",
                hint="to undo them as well: --accept-loss; to leave the table as it is: publish to another table",
            )

    def _compact(self) -> None:
        try:
            self.table.compact(_MAX_SMALL_FILES)
        except TransactionFailed as error:
            _log.warning("%s: its small files were not merged, which is tried again: %s", self.progress.title, error)


def _kept_rows(store: ObjectStore, first: Manifest, name: str) -> int | None:
    """Return the number of rows that a recovery counts as published. The recovery sends later rows of its cut again."""
    if first.traits is not RECOVER or first.rewind is None:
        return None
    cut, rest = (history.find(store, first.app, first.stage, at) for at in (first.rewind.to, first.version + 1))
    if cut is None or name not in cut.sinks:
        return None
    return cut.sinks[name].sent - (rest.sinks[name].rows if rest is not None and rest.traits is RECOVER else 0)
