"""A stage's versions on their way to durability, one after the other.

As a rule a batch ends with its commit. With `max_unflushed` it ends when its SSTs are durable on this machine: a thread
uploads them and commits, version after version, while the next batches run, as RocksDB flushes memtables while others
are written. What counts for everybody else, and for whoever goes on after a crash, is what is committed; a version that
never was is computed again.

A version is built on a head that may not be the newest any more when it is to be committed: a compaction of another
process (`slackwater compact`) is a version, too. It changes no row, so the batch follows it under the next number
(`store.compaction.rebase`). So it does where columns were backfilled meanwhile, once its own rows are, too; where only
the user's function could tell their values, it is `Overtaken`, and computed again. Whatever else took the number ends
this writer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile

from msgspec import structs

from ... import instants
from ...errors import CommitConflict, Fenced, Refused
from ...snapshot.backfill.announced import PATIENCE_S, announces
from ...snapshot.backfill.fill import is_replaced
from ...store.compaction.plan import Done
from ...store.compaction.rebase import rebase
from ...store.objects.protocol import ObjectStore
from ...store.objects.spooled import SpooledStore
from ...store.objects.stats import Stats
from ...store.read.read_stats import charged
from ...store.versions import commit, history, horizon
from ...store.versions.aside import all_ssts
from ...store.versions.manifest import Backfill, Manifest, Sst
from .meter import StageMeter

_REBASES = 100
"""Lost races, to those that commit at the same moment, before a commit gives up."""
_LOOK_S = 0.2
_UPLOADS = 4
"""SSTs of one version that are uploaded at once; each is in memory meanwhile."""
_ASIDE = ("compaction", "backfill")
"""Kinds of versions that others commit beside the batches, under the writer's epoch."""


class Overtaken(Exception):
    """The rows that a batch was built on have other values since; on the newest head it is to be computed again."""


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


class Committer:
    """Commits the versions of one claimed stage. Changes come from one thread; anything else may be asked from any.

    Args:
        claimed: The claim's manifest, the head.
        meter: Counts what the stage takes, for its versions to tell; None when nobody does.
        spool: Where the SSTs of changes wait; None when they are in the store already.
        max_unflushed: How many versions may be acknowledged and not committed; 0 for none.
        failed: Told, on a thread of this class, why nothing is committed any more.
        fill: Gets the head and the SSTs of a change that was computed before the head had some of its backfills, and
            these; gives the SSTs with their values. None for a stage without a table.
        patience_s: How long the values of a backfill are waited for that has announced them.
    """

    def __init__(
        self,
        store: ObjectStore,
        claimed: Manifest,
        *,
        meter: StageMeter | None = None,
        spool: SpooledStore | None = None,
        max_unflushed: int = 0,
        failed: Callable[[BaseException], None] = lambda _error: None,
        fill: Callable[[Manifest, Sequence[Sst], Sequence[Backfill]], Sequence[Sst]] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.head = claimed
        """The newest committed version."""
        self._claimed = claimed
        self._store = store
        self._meter = meter
        self._spool = spool
        self._max_unflushed = max_unflushed
        self._failed = failed
        self._fill = fill
        self._patience_s = patience_s
        self._announced = (0, 0.0)
        """The newest version that announced values, and when that was first seen."""
        self._committing = threading.Lock()
        self._moved = threading.Condition()
        """Guards what follows."""
        self._unflushed: deque[tuple[Change, float]] = deque()
        """Changes, and the seconds until each was acknowledged."""
        self._failure: BaseException | None = None
        self._closed = False
        self._uploaded: set[str] = set()
        if self._max_unflushed:
            threading.Thread(target=self._flush, name=f"flush-{claimed.stage}", daemon=True).start()

    @property
    def tip(self) -> Manifest:
        """What the next batch is built on: the newest acknowledged version."""
        with self._moved:
            return self._unflushed[-1][0].manifest if self._unflushed else self.head

    def submit(self, change: Change) -> None:
        """Make a version durable: one request, unless its number is taken.

        With `max_unflushed`, only see that it will be, and return, as soon as no more than that many are on their way.

        Raises:
            Fenced: A writer with a newer epoch took the stage over.
            CommitConflict: Somebody else, who is no compaction, committed.
            Unavailable: Storage did not answer.
            Refused: This was closed, or versions that were on their way were overtaken.
            Overtaken: Without `max_unflushed`: it was built on rows that have other values since. `head` has them.
        """
        if not self._max_unflushed:
            change, commit_seconds = self._commit(change)
            seconds = time.monotonic() - change.started
            change.on_commit(Committed(change.before, change.manifest, seconds, commit_seconds, 0))
            return
        with self._moved:
            self._moved.wait_for(lambda: self._over or len(self._unflushed) < self._max_unflushed)
            if self._failure is not None:
                raise self._failure
            if self._closed:
                name = f"{change.manifest.app}/{change.manifest.stage}"
                raise Refused(f"stage {name} was stopped before its last batch; it is read again by the next run")
            self._unflushed.append((change, time.monotonic() - change.started))
            self._moved.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was submitted is committed; False when it is not after the timeout, or failed."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._unflushed or self._over, timeout_s) and not self._unflushed

    def close(self) -> None:
        """Commit nothing more; what is not committed is dropped whole."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    @property
    def _over(self) -> bool:
        return self._closed or self._failure is not None

    def _flush(self) -> None:
        """Make changes durable, in their order, until this is closed or one fails."""
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._unflushed or self._closed)
                if self._closed:
                    return
                change, seconds = self._unflushed[0]
            try:
                change, commit_seconds = self._commit(change)
                self._forget()
                behind = len(self._unflushed) - 1
                change.on_commit(Committed(change.before, change.manifest, seconds, commit_seconds, behind))
            except Overtaken:
                # Those behind it are built on it.
                name = f"{change.manifest.app}/{change.manifest.stage}"
                self._fail(
                    Refused(
                        f"stage {name} was backfilled while {len(self._unflushed)} versions waited to be committed, "
                        "which are of rows as they were before",
                        hint="nothing committed is lost; start again: these batches are read again",
                    )
                )
                return
            except BaseException as error:
                self._fail(error)
                return
            with self._moved:
                self._unflushed.popleft()
                self._moved.notify_all()

    def _fail(self, error: BaseException) -> None:
        # First: whoever waits for the last version looks for errors once this is over.
        self._failed(error)
        # It is raised where the next batch ends, too.
        with self._moved:
            self._failure = error
            self._moved.notify_all()

    def refresh(self) -> None:
        """Adopt compactions that others committed, and see whether somebody took the stage over. Raises `Fenced`."""
        # A commit under way finds out for itself, and may wait for storage.
        if not self._committing.acquire(blocking=False):
            return
        try:
            compactions, other = self._newer(self.head)
            if compactions:
                self.head = compactions[-1]
                if announces(self.head):
                    self._first_seen_s(self.head)
            if other is not None and other.epoch > self.head.epoch:
                # The commit that loses says it best.
                head, now_ms = self.head, instants.now_ms()
                late = commit.successor(
                    head, kind="batch", epoch=head.epoch, writer=head.writer, by=head.by, now_ms=now_ms
                )
                commit.commit(self._store, late)
        finally:
            self._committing.release()

    def _commit(self, change: Change) -> tuple[Change, float]:
        """Commit on the head; the change as it was committed, and the seconds of the put."""
        with self._committing:
            self.head = self._awaited(self.head)
            change, seconds = self._put(self._onto(change, self.head))
            self.head = change.manifest
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
                self.head = self._awaited(compactions[-1])
                change = self._onto(change, self.head)
            else:
                break
        seconds = time.monotonic() - began
        if self._meter is not None:
            self._meter.put(seconds)
        return replace(change, manifest=manifest), seconds

    def _awaited(self, head: Manifest) -> Manifest:
        """The head, with the values that it announces once they are there, unless they take too long.

        Versions that are on their way (`max_unflushed`) would be lost to them: these do not wait.
        """
        while announces(head) and not self._max_unflushed:
            waited_s = time.monotonic() - self._first_seen_s(head)
            newer, other = self._newer(head)
            if newer:
                head = newer[-1]
                continue
            with self._moved:
                closed = self._moved.wait_for(lambda: self._closed, min(_LOOK_S, self._patience_s - waited_s))
            if closed or other is not None or waited_s >= self._patience_s:
                break
        return head

    def _first_seen_s(self, announced: Manifest) -> float:
        """When a version was seen that announces values, on the monotonic clock."""
        if self._announced[0] != announced.version:
            self._announced = announced.version, time.monotonic()
        return self._announced[1]

    def _onto(self, change: Change, head: Manifest) -> Change:
        """The change built on this head. Its rows get the values of backfills that they were computed without.

        Raises `Overtaken` where these cannot be told.
        """
        moved = change.onto(head)
        due = [each for each in head.backfills if each not in change.before.backfills]
        added = [sst for sst in moved.manifest.ssts if sst.object in moved.added] if due else []
        if not added or self._fill is None:
            return moved
        if head.table is not None and is_replaced(head.table):
            raise Overtaken
        filled = dict(zip(added, self._fill(head, added, due), strict=True))
        return replace(
            moved, manifest=structs.replace(moved.manifest, ssts=tuple(filled.get(s, s) for s in moved.manifest.ssts))
        )

    def _upload(self, change: Change) -> None:
        """Bring what the version adds into the store, unless it is there."""
        if self._spool is None or not (waiting := sorted(change.added - self._uploaded)):
            return
        with ThreadPoolExecutor(min(_UPLOADS, len(waiting)), thread_name_prefix="upload") as threads:
            for _ in threads.map(self._spool.upload, waiting):
                pass
        self._uploaded.update(waiting)

    def _forget(self) -> None:
        """The store has it. What a dropped merge left stays until the end: a batch under way may look into it."""
        if self._spool is not None:
            for key in self._uploaded:
                self._spool.forget(key)
        self._uploaded.clear()

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
