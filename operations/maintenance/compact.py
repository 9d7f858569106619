"""Compacting the tables of an app outside of its runners: versions of kind "compaction", between the batches.

What is due is picked from a stage's head, merged, and committed with the head's own epoch. When a batch or a claim was
first (`store.versions.amend`), the results are put into the new head instead; they are left out only where they do not
fit any more (`store.compaction.plan`). Such a version reads and writes nothing: all else is carried on as it is.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, InitVar, dataclass, field

from ulid import ULID

from ...errors import Corruption, Refused, Unavailable
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import record
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...store.compaction.merge import Stopped, run
from ...store.compaction.picker import pick_for
from ...store.compaction.plan import Compaction, Done, apply_to
from ...store.objects.counting import CountingStore
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore, exists
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import is_retired
from ...store.versions.kinds import COMPACTION
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, tables_of

_LAND_S = 10.0
"""Finished merges are committed this often while others go on."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One compaction that is due: how many SSTs, their bytes and levels, ascending, and that of what they become."""

    stage: str
    """The table: it bears the name of its stage, or is one beside that."""
    partition: int
    inputs: int
    bytes: int
    levels: tuple[int, ...]
    level: int
    moves: bool
    """Whether the SSTs stay as they are and only their level changes."""
    drops_tombstones: bool


def plan(store: ObjectStore, app: str, wanted: tuple[str, ...] = (), *, full: bool = False) -> tuple[Merge, ...]:
    """What is due of an app's tables by their policies; with `full`, what makes each state partition one run.

    Of the stages in `wanted`, empty for all. A listing, and the requests of `history.head` for each; changes nothing.

    Raises `NotFound` where there is no such app or stage, and `Refused` where a stage that is wanted keeps no table, or
    is retired.
    """
    found = []
    for head in _tables_of(store, app, wanted):
        tables = {} if head.retired else tables_of(head)
        for name, one in ((name, one) for name, at in tables.items() for one in pick_for(at, full=full)):
            size, levels = sum(sst.bytes for sst in one.inputs), tuple(sorted({sst.level for sst in one.inputs}))
            count, drops = len(one.inputs), one.drops_tombstones
            found.append(Merge(name, one.partition, count, size, levels, one.output_level, one.moves, drops))
    return tuple(found)


def merged_last(store: ObjectStore, app: str, wanted: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """The heads that are compactions: nothing has come since. Requests and errors are those of `plan`."""
    return tuple(head for head in _tables_of(store, app, wanted) if head.traits is COMPACTION)


def _tables_of(
    store: ObjectStore, app: str, wanted: tuple[str, ...], *, all_have_one: bool = True
) -> tuple[Manifest, ...]:
    stages = stages_of(store, app, *wanted)
    heads = heads_of(store, app, wanted or stages).values()
    for head in heads:
        if wanted and all_have_one and head.retired:
            raise is_retired(head)
        if wanted and all_have_one and head.table is None:
            raise Refused(
                f"stage {app}/{head.stage} keeps no table, so there is nothing to compact",
                hint=f"`slackwater status {app}` tells the keys of those that keep one",
            )
    return tuple(head for head in heads if head.table is not None)


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


@dataclass(slots=True)
class StageCompactor:
    """Compacts the tables of one stage, of which `head` is the head, or was it lately."""

    store: InitVar[ObjectStore]
    cache: SstCache
    head: Manifest
    _: KW_ONLY
    by: str
    threads: int
    """Merges that go on at once."""
    now_ms: Callable[[], int]
    stop: threading.Event
    """Once it is set, merges under way are given up."""
    _store: CountingStore = field(init=False)
    _writer: str = field(default_factory=lambda: str(ULID()), init=False)

    def __post_init__(self, store: ObjectStore) -> None:
        # Its own versions say what it takes.
        self._store = CountingStore(store)

    def until_done(self, *, full: bool = False) -> Iterator[Compacted]:
        """Merge until nothing is due, or `stop` is set; yields each version as it is committed.

        One request when nothing is due and no version was committed since. With `full`, each state partition becomes
        one run, once, also when batches go on.

        Raises `NotFound` where the stage is gone, `Refused` where a merge would take too long, `CommitConflict` where
        others kept winning the race for the next version, and `Unavailable`: the version may have been committed then.
        """
        todo: dict[str, set[int]] | None = None
        while not self.stop.is_set():
            head = self._newest()
            if head.table is None or head.retired:
                return
            tables = tables_of(head)
            if full and todo is None:
                todo = {name: set(range(at.table.partitions)) for name, at in tables.items() if at.table is not None}
            due: list[tuple[Table, Compaction]] = []
            for name, at in tables.items():
                left = todo.get(name, set()) if todo is not None else None
                picked = pick_for(at) if left is None else pick_for(at, full=True, only=left.__contains__)
                due += [(at.table, one) for one in picked if at.table is not None]
                if left is not None:
                    left.difference_update(one.partition for one in picked)
            if not due:
                return
            yield from self._merge(head, due)

    def _merge(self, head: Manifest, due: list[tuple[Table, Compaction]]) -> Iterator[Compacted]:
        given_up = threading.Event()

        def stop() -> bool:
            return given_up.is_set() or self.stop.is_set()

        with ThreadPoolExecutor(self.threads, thread_name_prefix=f"compact-{self.head.stage}") as pool:
            try:
                running = {
                    pool.submit(run, self._store, self.cache, head.app, self.head.stage, table, one, stop=stop)
                    for table, one in due
                }
                failures: list[BaseException] = []
                while running:
                    ended, running = wait(running, _LAND_S)
                    failures += [failed for one in ended if (failed := one.exception()) is not None]
                    done = [one.result() for one in ended if one.exception() is None]
                    if done and (committed := self._land(done)) is not None:
                        yield committed
                for failed in failures:
                    # A merge that was given up is nobody's trouble, nor is an SST that somebody else merged, and that
                    # was collected since.
                    if not isinstance(failed, Stopped) and not (
                        isinstance(failed, Corruption)
                        and all(sst.object != failed.object_key for sst in all_ssts(self._newest()))
                    ):
                        raise failed
            finally:
                # Whatever ended this early: nobody waits for the rest.
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _land(self, done: list[Done]) -> Compacted | None:
        """Commit results in the place of their inputs, on whatever is the head; None when none of them fits."""
        # Garbage collection takes what no version names once it is an hour old, and a process may have been asleep for
        # longer: one request for each SST that was written.
        written = [sst for one in done if not one.compaction.moves for sst in one.outputs]
        found = many(lambda sst: exists(self._store, sst.object), written)
        gone = {sst for sst, is_there in zip(written, found, strict=True) if not is_there}
        there = [one for one in done if gone.isdisjoint(one.outputs)]
        landed: list[Done] = []

        def fits(head: Manifest) -> bool:
            before, after = set(all_ssts(head)), set(all_ssts(apply_to(head, there)))
            # Unlike one that does not fit, whose inputs stay, or went before.
            landed[:] = [
                one
                for one in there
                if before.issuperset(one.compaction.inputs) and after.isdisjoint(one.compaction.inputs)
            ]
            return bool(landed) and not head.retired

        change = Amendment("compaction", lambda draft: apply_to(draft, there), fits)
        store, writer = self._store, self._writer
        made = amend(store, self.head, change, by=self.by, now_ms=self.now_ms, writer=writer, take_stats=store.take)
        self.head = made.manifest
        if not made.changed:
            return None
        return Compacted(
            app=self.head.app,
            stage=self.head.stage,
            version=self.head.version,
            merges=len(landed),
            partitions=tuple(sorted({one.compaction.partition for one in landed})),
            inputs=sum(len(one.compaction.inputs) for one in landed),
            outputs=sum(len(one.outputs) for one in landed),
            bytes_read=sum(one.compaction.input_bytes for one in landed),
            bytes_written=sum(one.output_bytes for one in landed),
            left_out=len(done) - len(landed),
        )

    def _newest(self) -> Manifest:
        app, known = self.head.app, self.head.version
        found = history.head(self._store, app, self.head.stage, hint=known)
        self.head = found or history.read(self._store, app, self.head.stage, known)
        return self.head


@dataclass(slots=True)
class AppCompactor:
    """Compacts the tables of an app, those of some stages or all."""

    store: ObjectStore
    cache: SstCache
    app: str
    wanted: tuple[str, ...] = ()
    """Only the tables of these stages; empty for all."""
    _: KW_ONLY
    by: str
    threads: int
    now_ms: Callable[[], int]
    stop: threading.Event
    """Once it is set, merges under way are given up."""
    _stages: dict[str, StageCompactor | None] = field(default_factory=dict, init=False)
    """None for a stage without a table."""

    def once(self, *, full: bool = False, on_version: Callable[[Compacted], None]) -> tuple[Compacted, ...]:
        """Merge until nothing is due; the versions, which the log of operations names. Raises as `merge_due` does."""
        done = []
        for each in self.merge_due(full=full):
            done.append(each)
            on_version(each)
        if done:
            versions = ", ".join(f"{each.stage}@v{each.version}" for each in done)
            made: dict[str, tuple[int, int]] = {}
            for each in done:
                made[each.stage] = (made.get(each.stage, (each.version - 1, 0))[0], each.version)
            record(self.store, self.app, "compact", f"--full, {versions}" if full else versions, self.by, made)
        return tuple(done)

    def watch(
        self,
        every_s: float,
        *,
        on_version: Callable[[Compacted], None],
        failed: Callable[[str, Exception], None],
        away: Callable[[Unavailable], None],
    ) -> None:
        """Merge what becomes due, looking for it every so many seconds, until `stop`. Raises as `plan`, at the start.

        `away` is told when the store does not answer: it will be there again, and nothing is lost meanwhile.
        """
        plan(self.store, self.app, self.wanted)  # refuses what there is nothing to watch of
        record(self.store, self.app, "compact", f"--watch, {', '.join(self.wanted) or 'all tables'}", self.by)
        while not self.stop.is_set():
            try:
                for each in self.merge_due(failed=failed):
                    on_version(each)
            except Unavailable as error:
                away(error)
            self.stop.wait(every_s)

    def merge_due(
        self, *, full: bool = False, failed: Callable[[str, Exception], None] | None = None
    ) -> Iterator[Compacted]:
        """Merge until nothing is due, or with `full` all; yields each version as it is committed. May be called again.

        A listing, and a request a stage, when nothing was committed since the last call. `failed` gets each stage whose
        table could not be merged, and why, and the other tables are merged; without it, and when the store does not
        answer, that ends it. Raises as `plan` and `StageCompactor.until_done` do, with a note that names the table.
        """
        names = self.wanted or stages_of(self.store, self.app)
        if new := tuple(name for name in names if name not in self._stages):
            check_exclusion(self.store, self.app, Intent.COMPACT)
            # Where the store does not answer, they are still new the next time.
            heads = _tables_of(self.store, self.app, new, all_have_one=bool(self.wanted))
            self._stages |= dict.fromkeys(new)
            by, threads, now_ms, stop = self.by, self.threads, self.now_ms, self.stop
            for head in heads:
                self._stages[head.stage] = StageCompactor(
                    self.store, self.cache, head, by=by, threads=threads, now_ms=now_ms, stop=stop
                )
        for name in names:
            if (compactor := self._stages[name]) is None:
                continue
            try:
                yield from compactor.until_done(full=full)
            except Unavailable:
                raise
            except Exception as error:
                error.add_note(f"while compacting {self.app}/{name}")
                if failed is None:
                    raise
                failed(name, error)
