"""The newest version of a stage, and how a change is put behind it.

A version is built on a head that may not be the newest any more when it is to be committed: a compaction of another
process (`slackwater compact`) is a version, too. It changes no row, so the change follows it under the next number
(`store.compaction.rebase`). So it does where columns were backfilled meanwhile, once its own rows are, too. Whatever
else took the number ends this writer.
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
from ...store.objects.protocol import ObjectStore
from ...store.read.read_stats import charged
from ...store.versions import commit, history, horizon
from ...store.versions.manifest import Backfill, Manifest, Sst
from ..upkeep.meter import StageMeter
from .change import Change

_REBASES = 100
"""Lost races, to those that commit at the same moment, before a commit gives up."""
_ASIDE = ("compaction", "backfill")
"""Kinds of versions that others commit beside the batches, under the writer's epoch."""

Fill = Callable[[Manifest, Sequence[Sst], Sequence[Backfill]], Sequence[Sst]]


class Head:
    """The newest committed version of one claimed stage.

    Args:
        claimed: The claim's manifest.
        upload: Brings what a change adds into the store, if it is not there.
        meter: Counts what the stage takes, for its versions to tell; None when nobody does.
        fill: As of `Committer`.
    """

    def __init__(
        self,
        store: ObjectStore,
        claimed: Manifest,
        *,
        upload: Callable[[Change], None],
        meter: StageMeter | None = None,
        fill: Fill | None = None,
    ) -> None:
        self.manifest = claimed
        """It."""
        self._claimed = claimed
        self._store, self._upload, self._meter, self._fill = store, upload, meter, fill
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
        """
        with self._committing:
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
                change = self._onto(change, compactions[-1])
            else:
                break
        seconds = time.monotonic() - began
        if self._meter is not None:
            self._meter.put(seconds)
        return replace(change, manifest=manifest), seconds

    def _onto(self, change: Change, head: Manifest) -> Change:
        """The change built on this head. Its rows get the values of backfills that they were computed without."""
        moved = change.onto(head)
        due = [each for each in head.backfills if each not in change.before.backfills]
        added = [sst for sst in moved.manifest.ssts if sst.object in moved.added] if due else []
        if not added or self._fill is None:
            return moved
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
