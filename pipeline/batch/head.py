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
from dataclasses import dataclass, field, replace

from msgspec import structs

from ...store.compaction.plan import Done, rebase
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Stats
from ...store.versions import commit, history
from ...store.versions.amend import Amendment, amend, newest
from ...store.versions.aside import all_ssts
from ...store.versions.manifest import Backfill, Manifest, Sst
from ..upkeep.meter import StageMeter

_ASIDE = ("compaction", "backfill")
"""Kinds of versions that others commit beside the batches, under the writer's epoch."""

Fill = Callable[[Manifest, Sequence[Sst], Sequence[Backfill]], Sequence[Sst]]


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a change.

    Attributes:
        before: The version before it.
        manifest: Its version.
        seconds: From the batch's start until the next one could start.
        commit_seconds: What the put of the manifest took.
        unflushed: Versions behind it that are not committed yet.
    """

    before: Manifest
    manifest: Manifest
    seconds: float
    commit_seconds: float
    unflushed: int


@dataclass(frozen=True, slots=True)
class Change:
    """A version to commit, and what it was built on.

    Attributes:
        before: The version the batch began with.
        manifest: The one after it.
        merges: Those that `manifest` has in the place of their inputs.
        started: When the batch did, on the monotonic clock.
        on_commit: Called once it is committed.
        taken: What its tasks took of the store.
    """

    before: Manifest
    manifest: Manifest
    merges: tuple[Done, ...]
    started: float
    on_commit: Callable[[Committed], None]
    taken: Stats = field(default_factory=Stats)

    @property
    def added(self) -> frozenset[str]:
        """The SSTs that the version before did not have, by object."""
        return frozenset(
            {sst.object for sst in all_ssts(self.manifest)} - {sst.object for sst in all_ssts(self.before)}
        )

    def onto(self, head: Manifest) -> Change:
        """The same, built on this head."""
        if head.version == self.before.version:
            # No other version: at most, what it took has been written up since.
            return replace(self, before=head)
        return replace(self, before=head, manifest=rebase(self.before, self.manifest, head, self.merges))


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
            head = newest(self._store, self._claimed.app, self._claimed.stage, self.manifest) or self.manifest
            commit.check_epoch(head, self._claimed.epoch)
            if self._in_the_way(head) is None:
                self.manifest = head
        finally:
            self._committing.release()

    def commit(self, change: Change) -> tuple[Change, float]:
        """Commit a change behind it: the change as it was committed, and the seconds of the put.

        Raises:
            Fenced: A writer with a newer epoch took the stage over.
            CommitConflict: Somebody else, who is no compaction, committed.
            Unavailable: Storage did not answer.
        """
        claimed, moved, began = self._claimed, change, 0.0

        def follows(head: Manifest) -> bool:
            nonlocal moved
            commit.check_epoch(head, claimed.epoch)
            if (other := self._in_the_way(head)) is not None:
                raise commit.lost_to(other, claimed.epoch)
            moved = self._onto(moved, head)
            self._upload(moved)
            return True

        def update(draft: Manifest) -> Manifest:
            nonlocal began
            began = time.monotonic()
            # The batch may be built on a version of somebody else's, such as a compaction.
            return structs.replace(moved.manifest, writer=draft.writer, by=draft.by)

        with self._committing:
            made = amend(
                self._store,
                self.manifest,
                Amendment(change.manifest.kind, update, follows, claimed.epoch, change.taken),
                by=claimed.by,
                now_ms=change.manifest.time_ms,
                writer=claimed.writer,
                taken=self._meter.take if self._meter is not None else None,
            )
            seconds = time.monotonic() - began
            if self._meter is not None:
                self._meter.put(seconds)
            self.manifest = made.manifest
        return replace(moved, manifest=made.manifest), seconds

    def _in_the_way(self, head: Manifest) -> Manifest | None:
        """The first version since the newest known, up to `head`, that no batch of this writer can follow, if any.

        Compactions change no row, and what a backfill changes is made up for (`_onto`).
        """
        since = (
            history.read(self._store, head.app, head.stage, version)
            for version in range(self.manifest.version + 1, head.version + 1)
        )
        return next((each for each in since if each.kind not in _ASIDE or each.epoch != head.epoch), None)

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
