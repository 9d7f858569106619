"""A stage's versions on their way to durability, one after the other.

As a rule a batch ends with its commit. With `max_unflushed` it ends when its SSTs are durable on this machine: a thread
uploads them and commits, version after version, while the next batches run, as RocksDB flushes memtables while others
are written. What counts for everybody else, and for whoever goes on after a crash, is what is committed; a version that
never was is computed again.

SSTs of unflushed versions wait on this machine in a folder for each runner, gone with it. What a runner that died has
left there is of no use, and the next one on this machine removes it.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ...errors import Refused
from ...store.objects.local import SpooledStore
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ..dev.process import locked
from ..upkeep.meter import StageMeter
from .head import Change, Committed, Fill, Head

_UPLOADS = 4
"""SSTs of one version that are uploaded at once; each is in memory meanwhile."""


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
        fill: Fill | None = None,
    ) -> None:
        self._spool = spool
        self._max_unflushed = max_unflushed
        self._failed = failed
        self._head = Head(store, claimed, upload=self._upload, meter=meter, fill=fill)
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
    def head(self) -> Manifest:
        """The newest committed version."""
        return self._head.manifest

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
            Refused: This was closed.
        """
        if not self._max_unflushed:
            change, commit_seconds = self._head.commit(change)
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

    def refresh(self) -> None:
        """Adopt compactions that others committed, and see whether somebody took the stage over. Raises `Fenced`."""
        self._head.refresh()

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
                change, commit_seconds = self._head.commit(change)
                self._forget()
                behind = len(self._unflushed) - 1
                change.on_commit(Committed(change.before, change.manifest, seconds, commit_seconds, behind))
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


def spools_beside(cache_folder: Path) -> Path:
    """The folder of all runners that have this cache: on the same disk, and not in what the cache may evict."""
    return cache_folder.with_name(f"{cache_folder.name}-spool")


@contextmanager
def spool_folder(parent: Path, writer: str) -> Iterator[Path]:
    """A folder for this process alone, empty, and removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = parent / writer, parent / f"{writer}.lock"
    # Before the folder: one without a lock that is held belongs to nobody.
    with locked(lock, lambda: None):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def sweep_spools(parent: Path) -> None:
    """Remove what runners have left that died. Those that live are let be."""
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        lock = folder.with_name(f"{folder.name}.lock")
        if folder.is_dir() and not _is_held(lock):
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
