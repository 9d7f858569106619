"""A stage's versions on their way to durability, one after the other, each behind the newest that is committed.

As a rule a batch ends with its commit. With `max_unflushed` it ends when its SSTs are durable on this machine: a thread
uploads them and commits, version after version, while the next batches run, as RocksDB flushes memtables while others
are written. They wait in a folder for each runner. What a runner that died has left there, the next one removes: a
version that never was committed is computed again.

The head that a version is built on may not be the newest when it is committed: a compaction of another process is a
version, too. It changes no row, so the change follows it under the next number (`store.compaction.plan.rebase`). Where
keys were forgotten, or the app was promoted, a batch that did anything is `Outdated`. What else took the number ends
this writer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from ...errors import CommitConflict, Refused
from ...store.compaction.plan import Done, rebase
from ...store.objects.local import SpooledStore
from ...store.objects.many import do_all
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Stats
from ...store.versions import commit, history
from ...store.versions.amend import Amendment, amend, newest
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts
from ..upkeep.meter import StageMeter

_UPLOADS = 4
"""SSTs of one version that are uploaded at once; each is in memory meanwhile."""


class Outdated(CommitConflict):
    """A batch was computed on what is not so any more: it is to be computed once more."""


class PromotedMeanwhile(Outdated):
    """A batch was computed without the sinks that its app has by now."""


class ForgottenMeanwhile(Outdated):
    """A batch was computed on rows of keys, perhaps, that were forgotten since."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a change: the version `before` it, and its own."""

    before: Manifest
    manifest: Manifest
    seconds: float
    """From the batch's start until the next one could start."""
    commit_seconds: float
    """What the put of the manifest took."""
    unflushed: int
    """Versions behind it that are not committed yet."""


@dataclass(frozen=True, slots=True)
class PendingVersion:
    """A version to commit, and the one `before` it, which the batch was built on."""

    before: Manifest
    manifest: Manifest
    merges: tuple[Done, ...]
    """Those that `manifest` has in the place of their inputs."""
    started: float
    """When the batch did, on the monotonic clock."""
    on_commit: Callable[[Committed], None]
    taken: Stats = field(default_factory=Stats)
    """What its tasks took of the store."""

    @property
    def added(self) -> frozenset[str]:
        """The SSTs that the version before did not have, by object."""
        before = {sst.object for sst in all_ssts(self.before)}
        return frozenset(sst.object for sst in all_ssts(self.manifest) if sst.object not in before)


class Committer:
    """Commits the versions of one claimed stage. Changes come from one thread; anything else may be asked from any.

    Args:
        claimed: The claim's manifest, the head.
        meter: Counts what the stage takes, for its versions to tell; None when nobody does.
        spool: Where the SSTs of changes wait; None when they are in the store already.
        max_unflushed: How many versions may be acknowledged and not committed; 0 for none.
        failed: Told, on a thread of this class, why nothing is committed any more.
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
    ) -> None:
        self.head = self._claimed = claimed
        """The newest committed version."""
        self.in_order = False
        """Whether nothing is to run ahead of the store now: what is acknowledged cannot be computed once more."""
        self._store, self._meter, self._spool = store, meter, spool
        self._max_unflushed, self._failed = max_unflushed, failed
        self._committing = threading.Lock()
        self._uploaded: set[str] = set()
        self._moved = threading.Condition()
        """Guards what follows."""
        self._unflushed: deque[tuple[PendingVersion, float]] = deque()
        """Changes, and the seconds until each was acknowledged."""
        self._failure: BaseException | None = None
        self._closed = False
        if max_unflushed:
            threading.Thread(target=self._flush, name=f"flush-{claimed.stage}", daemon=True).start()

    @property
    def tip(self) -> Manifest:
        """What the next batch is built on: the newest acknowledged version."""
        with self._moved:
            return self._unflushed[-1][0].manifest if self._unflushed else self.head

    def submit(self, change: PendingVersion) -> None:
        """Make a version durable: one request, unless its number is taken.

        With `max_unflushed`, only see that it will be, and return, as soon as no more than that many are on their way;
        but `in_order`, wait until it is.

        Raises `Fenced` where a writer with a newer epoch took the stage over, `CommitConflict` where somebody else
        committed what is of no kind that goes beside batches, `Outdated`, and `Refused` where this was closed.
        """
        if not self._max_unflushed:
            self._commit(change)
            return
        with self._moved:
            self._moved.wait_for(lambda: self._over or len(self._unflushed) < self._most)
            if self._failure is not None:
                raise self._failure
            if self._closed:
                name = f"{change.manifest.app}/{change.manifest.stage}"
                raise Refused(f"stage {name} was stopped before its last batch; it is read again by the next run")
            # Order may be asked for while this one waits: what is on its way comes before it.
            if self._unflushed or not self.in_order:
                self._unflushed.append((change, time.monotonic() - change.started))
                self._moved.notify_all()
                return
        self._commit(change)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was submitted is committed; False when it is not after the timeout, or failed."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._unflushed or self._over, timeout_s) and not self._unflushed

    def close(self) -> None:
        """Commit nothing more; what is not committed is dropped whole."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    def refresh(self) -> None:
        """Adopt what others committed beside the batches. Raises `Fenced` where somebody took the stage over."""
        # A commit under way finds out for itself, and may wait for storage.
        if not self._committing.acquire(blocking=False):
            return
        try:
            head = newest(self._store, self._claimed.app, self._claimed.stage, self.head) or self.head
            commit.check_epoch(head, self._claimed.epoch)
            if self._in_the_way(head) is None:
                self.head = head
        finally:
            self._committing.release()

    @property
    def _most(self) -> int:
        return 1 if self.in_order else self._max_unflushed

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
                self._commit(change, seconds)
            except BaseException as error:
                # First: whoever waits for the last version looks for errors once this is over.
                self._failed(error)
                # It is raised where the next batch ends, too.
                with self._moved:
                    self._failure = error
                    self._moved.notify_all()
                return
            with self._moved:
                self._unflushed.popleft()
                self._moved.notify_all()

    def _commit(self, change: PendingVersion, acknowledged_s: float | None = None) -> None:
        """Commit a change behind the head. Raises as `submit` without `max_unflushed`."""
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
                self.head,
                Amendment(change.manifest.kind, update, follows, claimed.epoch, change.taken),
                by=claimed.by,
                now_ms=change.manifest.time_ms,
                writer=claimed.writer,
                take_stats=self._meter.take if self._meter is not None else None,
            ).manifest
            ended = time.monotonic()
            if self._meter is not None:
                self._meter.put(ended - began)
            self.head = made
        # The store has it. What a dropped merge left stays until the end: a batch under way may look into it.
        while self._spool is not None and self._uploaded:
            self._spool.forget(self._uploaded.pop())
        seconds = time.monotonic() - change.started if acknowledged_s is None else acknowledged_s
        change.on_commit(Committed(moved.before, made, seconds, ended - began, max(0, len(self._unflushed) - 1)))

    def _in_the_way(self, head: Manifest) -> Manifest | None:
        """The first version since the newest known, up to `head`, that no batch of this writer can follow, if any."""
        since = (
            history.read(self._store, head.app, head.stage, version)
            for version in range(self.head.version + 1, head.version + 1)
        )
        return next((each for each in since if not each.traits.beside_batches or each.epoch != head.epoch), None)

    def _onto(self, change: PendingVersion, head: Manifest) -> PendingVersion:
        """The change built on this head. Raises `Outdated` where its batch has to be computed once more."""
        if head.sinks.keys() != change.before.sinks.keys() or head.promotion != change.before.promotion:
            change = self._promoted(change, head)
        if head.forgotten != change.before.forgotten and change.added:
            raise ForgottenMeanwhile(
                f"keys of {head.app}/{head.stage} were forgotten at v{head.version} while a batch of it was under way",
                version=head.version,
                hint="start this one again: the batch is computed once more",
            )
        moved = replace(change, before=head)
        # Where there is no other version, at most what the head took has been written up since.
        if head.version != change.before.version:
            moved = replace(moved, manifest=rebase(change.before, change.manifest, head, change.merges))
        return moved

    def _promoted(self, change: PendingVersion, head: Manifest) -> PendingVersion:
        """The change of a batch that was computed before its app was promoted, with the sinks that it has since.

        Raises `PromotedMeanwhile` where the batch did anything: it is to give these what is theirs.
        """
        manifest = change.manifest
        read, sent = (each.rows for each in manifest.inputs.values()), (each.rows for each in manifest.outputs.values())
        if (change.added or any(read) or any(sent)) and manifest.traits.reads_records:  # which sends nothing on
            raise PromotedMeanwhile(
                f"stage {head.app}/{head.stage} was promoted at v{head.version} while a batch of it was under way",
                version=head.version,
                hint="start this one again: the batch is computed once more",
            )
        kept = {"sinks": head.sinks, "silent": head.silent, "promotion": head.promotion}
        return replace(change, manifest=structs.replace(manifest, **kept))

    def _upload(self, change: PendingVersion) -> None:
        """Bring what the version adds into the store, unless it is there."""
        if self._spool is None or not (waiting := sorted(change.added - self._uploaded)):
            return
        do_all(self._spool.upload, waiting, min(_UPLOADS, len(waiting)))
        self._uploaded.update(waiting)


def spools_beside(cache_folder: Path) -> Path:
    """The folder of all runners that have this cache: on the same disk, and not in what the cache may evict."""
    return cache_folder.with_name(f"{cache_folder.name}-spool")
