"""Compacting a stage's table from outside of its runner: versions of kind "compaction", beside the batches.

What is due is picked from the head, merged, and committed with the head's own epoch. When a batch or a claim came first
(`store.versions.amend`), the results are put into the new head instead; they are left out only where they do not fit
any more (`store.compaction.plan`). Such a version reads nothing and writes nothing: all else is carried on as it is.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from msgspec.structs import replace
from ulid import ULID

from ...errors import Corruption
from ...store.compaction.merge import Stopped, run
from ...store.compaction.picker import pick_for
from ...store.compaction.plan import Compaction, Done, apply
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore, exists
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Manifest
from ..gc.inventory import many

_LAND_S = 10.0
"""Finished merges are committed this often while others go on."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A version of kind "compaction" that was committed: outputs took the place of inputs, all of them SSTs."""

    app: str
    stage: str
    version: int
    merges: int
    partitions: tuple[int, ...]
    """State partitions that were merged in, ascending."""
    inputs: int
    outputs: int
    bytes_read: int
    bytes_written: int
    left_out: int
    """Merges whose result did not fit any more: their inputs were merged by somebody else, or it is gone."""


class StageCompactor:
    """Compacts the table of one stage, of which `head` is the head, or was it lately; the rest as of `AppCompactor`."""

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        head: Manifest,
        *,
        by: str,
        threads: int,
        now_ms: Callable[[], int],
        stop: threading.Event,
    ) -> None:
        self.stage = head.stage
        # What it takes is told by its own versions.
        self._store, self._cache = CountingStore(store), cache
        self._known = head
        self._writer = str(ULID())
        self._by, self._threads, self._now_ms, self._stop = by, threads, now_ms, stop

    def until_done(self, *, full: bool = False) -> Iterator[Compacted]:
        """Merge until nothing is due, or until told to stop; yields each version as it is committed.

        One request when nothing is due and no version was committed since. With `full`, each state partition becomes
        one run, once, also when batches go on.

        Raises:
            NotFound: the stage is gone.
            Refused: a merge would take too long.
            CommitConflict: others kept winning the race for the next version.
            Corruption: an SST is missing or damaged.
            Unavailable: storage did not answer; the version may have been committed.
        """
        todo: set[int] | None = None
        while not self._stop.is_set():
            head = self._head()
            if head.table is None or head.retired:
                return
            if full and todo is None:
                todo = set(range(head.table.partitions))
            due = pick_for(head) if todo is None else pick_for(head, full=True, only=todo.__contains__)
            if not due:
                return
            yield from self._merge(head, due)
            if todo is not None:
                todo.difference_update(one.partition for one in due)

    def _merge(self, head: Manifest, due: tuple[Compaction, ...]) -> Iterator[Compacted]:
        """Carry out these merges, and commit what is finished now and then."""
        assert head.table is not None  # noqa: S101  as the caller has seen
        given_up = threading.Event()

        def stop() -> bool:
            return given_up.is_set() or self._stop.is_set()

        with ThreadPoolExecutor(self._threads, thread_name_prefix=f"compact-{self.stage}") as pool:
            try:
                running = {
                    pool.submit(run, self._store, self._cache, head.app, self.stage, head.table, one, stop=stop)
                    for one in due
                }
                failures: list[BaseException] = []
                while running:
                    ended, running = wait(running, _LAND_S)
                    failures += [failed for one in ended if (failed := one.exception()) is not None]
                    done = [one.result() for one in ended if one.exception() is None]
                    if done and (committed := self._land(done)) is not None:
                        yield committed
                for failed in failures:
                    self._raise(failed)
            finally:
                # Whatever ended this early: nobody waits for the rest.
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _raise(self, failed: BaseException) -> None:
        """Raise what ended a merge, unless that is nobody's trouble."""
        if isinstance(failed, Stopped):
            return
        if isinstance(failed, Corruption) and not any(sst.object == failed.object_key for sst in self._head().ssts):
            return  # merged by somebody else, and collected since
        raise failed

    def _land(self, done: list[Done]) -> Compacted | None:
        """Commit results in the place of their inputs, on whatever is the head; None when none of them fits."""
        there = self._still_there(done)
        landed: list[Done] = []

        def fits(head: Manifest) -> bool:
            ssts = apply(head.ssts, there)
            before, after = set(head.ssts), set(ssts)
            # Unlike one that does not fit, whose inputs stay, or went before.
            landed[:] = [
                one
                for one in there
                if before.issuperset(one.compaction.inputs) and after.isdisjoint(one.compaction.inputs)
            ]
            return bool(landed) and not head.retired

        change = Amendment("compaction", lambda draft: replace(draft, ssts=apply(draft.ssts, there)), fits)
        made = amend(
            self._store,
            self._known,
            change,
            by=self._by,
            now_ms=self._now_ms,
            writer=self._writer,
            taken=self._store.take,
        )
        self._known = made.manifest
        if not made.changed:
            return None
        return Compacted(
            app=self._known.app,
            stage=self.stage,
            version=self._known.version,
            merges=len(landed),
            partitions=tuple(sorted({one.compaction.partition for one in landed})),
            inputs=sum(len(one.compaction.inputs) for one in landed),
            outputs=sum(len(one.outputs) for one in landed),
            bytes_read=sum(one.compaction.input_bytes for one in landed),
            bytes_written=sum(one.output_bytes for one in landed),
            left_out=len(done) - len(landed),
        )

    def _still_there(self, done: list[Done]) -> list[Done]:
        """The results of which every SST is in the store: one request for each that was written.

        Garbage collection takes what no version names once it is an hour old, and a process may have been
        asleep for longer.
        """
        written = [sst for one in done if not one.compaction.moves for sst in one.outputs]
        found = many(lambda sst: exists(self._store, sst.object), written)
        gone = {sst for sst, there in zip(written, found, strict=True) if not there}
        return [one for one in done if gone.isdisjoint(one.outputs)]

    def _head(self) -> Manifest:
        app, known = self._known.app, self._known.version
        self._known = history.head(self._store, app, self.stage, known=known) or history.read(
            self._store, app, self.stage, known
        )
        return self._known
