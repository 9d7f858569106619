"""The newest version of a stage, and how a change is put behind it.

A version is built on a head that may not be the newest any more when it is to be committed: a compaction of another
process (`slackwater compact`) is a version, too. It changes no row, so the change follows it under the next number
(`store.compaction.rebase`). So it does where columns were backfilled meanwhile, once its own rows are, too; where only
the user's function could tell their values, it is `Outdated`, and to be computed again. Whatever else took the number
ends this writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from msgspec import structs

from ... import instants
from ...errors import CommitConflict, Fenced
from ...snapshot.backfill.announced import PATIENCE_S, announces
from ...snapshot.backfill.fill import is_replaced
from ...store.objects.protocol import ObjectStore
from ...store.read.read_stats import charged
from ...store.versions import commit, history, horizon
from ...store.versions.manifest import Backfill, Manifest, Sst
from ..upkeep.meter import StageMeter
from .change import Change

_REBASES = 100
"""Lost races, to those that commit at the same moment, before a commit gives up."""
_LOOK_S = 0.2
_ASIDE = ("compaction", "backfill")
"""Kinds of versions that others commit beside the batches, under the writer's epoch."""

Fill = Callable[[Manifest, Sequence[Sst], Sequence[Backfill]], Sequence[Sst]]


class Outdated(Exception):
    """The rows that a batch was built on have other values since; on the newest head it is to be computed again."""


class Head:
    """The newest committed version of one claimed stage.

    Args:
        claimed: The claim's manifest.
        upload: Brings what a change adds into the store, if it is not there.
        closed: Waits for so many seconds at most; whether nothing is to be committed any more.
        meter: Counts what the stage takes, for its versions to tell; None when nobody does.
        fill: As of `Committer`.
        patience_s: How long the values of a backfill are waited for that has announced them; 0 where versions on their
            way would be lost to them.
    """

    def __init__(
        self,
        store: ObjectStore,
        claimed: Manifest,
        *,
        upload: Callable[[Change], None],
        closed: Callable[[float], bool],
        meter: StageMeter | None = None,
        fill: Fill | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.manifest = claimed
        """It."""
        self._claimed = claimed
        self._store, self._upload, self._closed = store, upload, closed
        self._meter, self._fill, self._patience_s = meter, fill, patience_s
        self._announced = (0, 0.0)
        """The newest version that announced values, and when that was first seen."""
        self._committing = threading.Lock()

    def refresh(self) -> None:
        """Adopt compactions that others committed, and see whether somebody took the stage over. Raises `Fenced`."""
        # A commit under way finds out for itself, and may wait for storage.
        if not self._committing.acquire(blocking=False):
            return
        try:
            compactions, other = self._newer(self.manifest)
            if compactions:
                self.manifest = compactions[-1]
                if announces(self.manifest):
                    self._first_seen_s(self.manifest)
            if other is not None and other.epoch > self.manifest.epoch:
                # The commit that loses says it best.
                head, now_ms = self.manifest, instants.now_ms()
                late = commit.successor(
                    head, kind="batch", epoch=head.epoch, writer=head.writer, by=head.by, now_ms=now_ms
                )
                commit.commit(self._store, late)
        finally:
            self._committing.release()

    def commit(self, change: Change) -> tuple[Change, float]:
        """Commit a change behind it: the change as it was committed, and the seconds of the put.

        Raises:
            Fenced: A writer with a newer epoch took the stage over.
            CommitConflict: Somebody else, who is no compaction, committed.
            Unavailable: Storage did not answer.
            Outdated: It was built on rows that have other values since. `manifest` has them.
        """
        with self._committing:
            self.manifest = self._awaited(self.manifest)
            change, seconds = self._put(self._onto(change, self.manifest))
            self.manifest = change.manifest
        return change, seconds

    def _put(self, change: Change) -> tuple[Change, float]:
        """Put the manifest, after compactions where these were faster; as it was put, and the seconds of the last."""
        taken = change.taken
        for attempt in range(_REBASES):
            self._upload(change)
            # It may be built on a version of somebody else's, such as a compaction.
            manifest = structs.replace(change.manifest, writer=self._claimed.writer, by=self._claimed.by)
            if self._meter is not None:
                taken += self._meter.take()
                manifest = charged(change.before, manifest, taken)
            began = time.monotonic()
            try:
                commit.commit(self._store, manifest)
            except Fenced:
                raise
            except CommitConflict:
                compactions, _ = self._newer(change.before)
                if not compactions or attempt == _REBASES - 1:
                    raise
                self.manifest = self._awaited(compactions[-1])
                change = self._onto(change, self.manifest)
            else:
                break
        seconds = time.monotonic() - began
        if self._meter is not None:
            self._meter.put(seconds)
        return replace(change, manifest=manifest), seconds

    def _awaited(self, head: Manifest) -> Manifest:
        """The head, with the values that it announces once they are there, unless they take too long."""
        while announces(head):
            waited_s = time.monotonic() - self._first_seen_s(head)
            newer, other = self._newer(head)
            if newer:
                head = newer[-1]
                continue
            if other is not None or waited_s >= self._patience_s:
                break
            if self._closed(min(_LOOK_S, self._patience_s - waited_s)):
                break
        return head

    def _first_seen_s(self, announced: Manifest) -> float:
        """When a version was seen that announces values, on the monotonic clock."""
        if self._announced[0] != announced.version:
            self._announced = announced.version, time.monotonic()
        return self._announced[1]

    def _onto(self, change: Change, head: Manifest) -> Change:
        """The change built on this head. Its rows get the values of backfills that they were computed without.

        Raises `Outdated` where these cannot be told.
        """
        moved = change.onto(head)
        due = [each for each in head.backfills if each not in change.before.backfills]
        added = [sst for sst in moved.manifest.ssts if sst.object in moved.added] if due else []
        if not added or self._fill is None:
            return moved
        if head.table is not None and is_replaced(head.table):
            raise Outdated
        filled = dict(zip(added, self._fill(head, added, due), strict=True))
        return replace(
            moved, manifest=structs.replace(moved.manifest, ssts=tuple(filled.get(s, s) for s in moved.manifest.ssts))
        )

    def _newer(self, head: Manifest) -> tuple[list[Manifest], Manifest | None]:
        """The compactions and backfills of this epoch that follow a version, and what came after them, if anything did.

        Compactions change no row, and what a backfill changes is made up for (`_onto`).
        """
        began = horizon.freshness(self._store).now()
        newer = list(history.after(self._store, head.app, head.stage, head.version))
        last = newer[-1].version if newer else head.version
        if not newer and not horizon.freshness(self._store).is_fresh(head.app, head.stage, last + 1):
            # A process that was asleep may find the number free because all there was is gone.
            commit.check_there(self._store, head, last)
        horizon.freshness(self._store).saw_free(head.app, head.stage, last + 1, began)
        ours = takewhile(lambda found: found.kind in _ASIDE and found.epoch == head.epoch, newer)
        compactions = list(ours)
        return compactions, newer[len(compactions)] if len(compactions) < len(newer) else None
