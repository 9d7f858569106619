"""A stage's versions on their way to durability, one after the other.

A version is built on a head that may not be the newest any more when it is to be committed: a compaction of another
process (`slackwater compact`) is a version, too. It changes no row, so the batch follows it under the next number
(`store.rebase`). Whatever else took the number ends this writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

from ..store import boundary, commit, history
from ..store.compaction import Done
from ..store.errors import CommitConflict, Fenced
from ..store.manifest import Manifest
from ..store.objects import ObjectStore
from ..store.rebase import rebase

__all__ = ["Change", "Committed", "Committer"]

_REBASES = 100
"""Lost races, to compactions that commit at the same moment, before a commit gives up."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a change.

    Attributes:
        before: The version before it.
        manifest: Its version.
        seconds: From the batch's start until the next one could start.
        commit_seconds: What the put of the manifest took.
    """

    before: Manifest
    manifest: Manifest
    seconds: float
    commit_seconds: float


@dataclass(frozen=True, slots=True)
class Change:
    """A version to commit, and what it was built on.

    Attributes:
        before: The version the batch began with.
        manifest: The one after it.
        merges: Those that `manifest` has in the place of their inputs.
        started: When the batch did, on the monotonic clock.
        told: Hears of the commit.
    """

    before: Manifest
    manifest: Manifest
    merges: tuple[Done, ...]
    started: float
    told: Callable[[Committed], None]

    def onto(self, head: Manifest) -> Change:
        """The same, built on this head."""
        if head is self.before:
            return self
        return replace(self, before=head, manifest=rebase(self.before, self.manifest, head, self.merges))


class Committer:
    """Commits the versions of one claimed stage. Changes come from one thread; anything else may be asked from any.

    Args:
        store: Where manifests go.
        claimed: The claim's manifest, the head.
    """

    def __init__(self, store: ObjectStore, claimed: Manifest) -> None:
        self.head = claimed
        """The newest committed version."""
        self._store = store
        self._lock = threading.Lock()

    @property
    def tip(self) -> Manifest:
        """What the next batch is built on."""
        return self.head

    def submit(self, change: Change) -> None:
        """Make a version durable: one request, unless its number is taken.

        Raises:
            Fenced: A writer with a newer epoch took the stage over.
            CommitConflict: Somebody else, who is no compaction, committed.
            Unavailable: Storage did not answer.
        """
        with self._lock:
            change, commit_seconds = self._commit(change.onto(self.head))
            self.head = change.manifest
        seconds = time.monotonic() - change.started
        change.told(Committed(change.before, change.manifest, seconds, commit_seconds))

    def look(self) -> None:
        """Adopt compactions that others committed, and see whether somebody took the stage over. Raises `Fenced`."""
        # A commit under way finds out for itself, and may wait for storage.
        if not self._lock.acquire(blocking=False):
            return
        try:
            compactions, other = self._newer(self.head)
            if compactions:
                self.head = compactions[-1]
            if other is not None and other.epoch > self.head.epoch:
                # The commit that loses says it best.
                commit.commit(self._store, self._successor())
        finally:
            self._lock.release()

    def _commit(self, change: Change) -> tuple[Change, float]:
        """Commit, after compactions where these were faster; as it was committed, and the seconds of the last put."""
        for attempt in range(_REBASES):
            began = time.monotonic()
            try:
                commit.commit(self._store, change.manifest)
            except Fenced:
                raise
            except CommitConflict:
                compactions, _ = self._newer(change.before)
                if not compactions or attempt == _REBASES - 1:
                    raise
                change = change.onto(compactions[-1])
            else:
                break
        return change, time.monotonic() - began

    def _newer(self, head: Manifest) -> tuple[list[Manifest], Manifest | None]:
        """The compactions of this epoch that follow a version, and what came after them, if anything did."""
        began = boundary.sights(self._store).now()
        newer = list(history.after(self._store, head.app, head.stage, head.version))
        last = newer[-1].version if newer else head.version
        boundary.sights(self._store).saw_free(head.app, head.stage, last + 1, began)
        ours = takewhile(lambda found: found.kind == "compaction" and found.epoch == head.epoch, newer)
        compactions = list(ours)
        return compactions, newer[len(compactions)] if len(compactions) < len(newer) else None

    def _successor(self) -> Manifest:
        head = self.head
        return commit.successor(
            head, kind="batch", epoch=head.epoch, writer=head.writer, by=head.by, now_ms=time.time_ns() // 1_000_000
        )
