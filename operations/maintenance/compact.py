"""Compaction of an app's tables without its runner, by versions of kind `compaction` between the batches.

Merges are picked from a stage's head, and committed with the head's own epoch. If a batch or a claim commits first
(`store.versions.amend`), the results are applied to the new head. A result is dropped only if it no longer fits the
head (`store.compaction.plan`). A compaction neither reads nor sends records, and changes nothing in a version except
its SSTs.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial

from ...common import runtime
from ...errors import Corruption, Refused, Unavailable
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import record_operation
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...store.compaction.merge import MergeStopped, run_compaction
from ...store.compaction.picker import pick_for_manifest
from ...store.compaction.plan import Compaction, CompactionResult, apply_to_manifest
from ...store.objects.counting import CountingStore
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore, exists
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import retired_error
from ...store.versions.kinds import COMPACTION
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, tables_of

_COMMIT_INTERVAL_S = 10.0
"""Interval in seconds at which finished merges are committed while others continue."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge that is due: the number, bytes and levels (ascending) of its SSTs, and the level of its output."""

    stage: str
    """Name of the table: the stage's name or the name of a side table."""
    partition: int
    inputs: int
    bytes: int
    levels: tuple[int, ...]
    level: int
    moves: bool
    """True if the merge changes only the level of the SSTs, without a rewrite."""
    drops_tombstones: bool


def plan(store: ObjectStore, app: str, stages: tuple[str, ...] = (), *, full: bool = False) -> tuple[Merge, ...]:
    """Return the merges that an app's compaction policies require. Changes nothing.

    With `full`, returns the merges that make each hash range one run. Empty `stages` means all stages. Makes a listing,
    and for each stage the requests of `history.head`.

    Raises `NotFound` if the app or a stage does not exist, and `Refused` if one of `stages` has no table, or is
    retired.
    """
    heads = (head for head in _heads_with_table(store, app, stages) if not head.retired)
    tables = (table for head in heads for table in tables_of(head).items())
    return tuple(_merge(name, due) for name, at in tables for due in pick_for_manifest(at, full=full))


def _merge(name: str, due: Compaction) -> Merge:
    size, levels = sum(sst.bytes for sst in due.inputs), tuple(sorted({sst.level for sst in due.inputs}))
    output = due.output_level, due.is_trivial_move, due.drops_tombstones
    return Merge(name, due.partition, len(due.inputs), size, levels, *output)


def heads_of_compactions(store: ObjectStore, app: str, stages: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """Return the newest version of each stage, if that version is of kind `compaction`.

    Makes the requests of `plan`, and raises its errors.
    """
    return tuple(head for head in _heads_with_table(store, app, stages) if head.traits is COMPACTION)


def _heads_with_table(
    store: ObjectStore, app: str, names: tuple[str, ...], *, must_have_table: bool = True
) -> tuple[Manifest, ...]:
    stages = stages_of(store, app, *names)
    heads = heads_of(store, app, names or stages).values()
    for head in heads:
        if names and must_have_table and head.retired:
            raise retired_error(head)
        if names and must_have_table and head.table is None:
            raise Refused(
                f"stage {app}/{head.stage} has no table, so there is nothing to compact",
                hint=f"`slackwater status {app}` shows which stages have one",
            )
    return tuple(head for head in heads if head.table is not None)


@dataclass(frozen=True, slots=True)
class Compacted:
    """Committed version of kind `compaction`, with the number of merged SSTs (`inputs`) and of new SSTs (`outputs`)."""

    app: str
    stage: str
    version: int
    merges: int
    partitions: tuple[int, ...]
    inputs: int
    outputs: int
    bytes_read: int
    bytes_written: int
    left_out: int
    """Number of merges that were dropped because another process merged their inputs, or their output was deleted."""


@dataclass(slots=True)
class StageCompactor:
    """Compacts the tables of one stage. `head` is the stage's newest version, possibly outdated."""

    store: InitVar[ObjectStore]
    cache: SstCache
    head: Manifest
    _: KW_ONLY
    by: str
    threads: int
    now_ms: Callable[[], int]
    stop: runtime.Event
    """If this event is set, running merges are abandoned."""
    _store: CountingStore = field(init=False)
    _writer: str = field(default_factory=lambda: str(runtime.ulid()), init=False)

    def __post_init__(self, store: ObjectStore) -> None:
        # The versions record the requests that they took.
        self._store = CountingStore(store)

    def merge_until_done(self, *, full: bool = False) -> Iterator[Compacted]:
        """Merge until no merge is due, or `stop` is set. Yields each version when it is committed.

        Makes one request if no merge is due and no version was committed since the last call. With `full`, merges each
        state partition into one run, once, even if batches are committed meanwhile.

        Raises `NotFound` if the stage was deleted, `Refused` if a merge would take too long, `CommitConflict` if other
        writers kept committing the next version first, and `Unavailable`, after which the version may have been
        committed.
        """
        # With `full`: the hash ranges of each table that are not merged yet.
        todo: dict[str, set[int]] = {}
        while not self.stop.is_set():
            head = self._newest()
            if head.table is None or head.retired:
                return
            tables = tables_of(head)
            if full and not todo:
                todo = {name: set(range(at.table.ranges)) for name, at in tables.items() if at.table is not None}
            due: list[tuple[Table, Compaction]] = []
            for name, at in tables.items():
                remaining = todo.get(name, set())
                picked = pick_for_manifest(at, full=full, accepts=remaining.__contains__)
                due += [(at.table, compaction) for compaction in picked if at.table is not None]
                remaining.difference_update(compaction.partition for compaction in picked if not compaction.cuts)
            if not due:
                return
            yield from self._merge(head, due)

    def _merge(self, head: Manifest, due: list[tuple[Table, Compaction]]) -> Iterator[Compacted]:
        given_up = runtime.event()

        def stop() -> bool:
            return given_up.is_set() or self.stop.is_set()

        with runtime.executor(self.threads, name=f"compact-{self.head.stage}") as pool:
            try:
                run = partial(run_compaction, self._store, self.cache, head.app, self.head.stage, should_stop=stop)
                running = {pool.submit(run, table, compaction) for table, compaction in due}
                failures: list[BaseException] = []
                while running:
                    ended = runtime.wait(running, _COMMIT_INTERVAL_S)
                    running -= ended
                    failures += [failed for future in ended if (failed := future.exception()) is not None]
                    done = [future.result() for future in ended if future.exception() is None]
                    if done and (committed := self._commit_results(done)) is not None:
                        yield committed
                for failed in failures:
                    # Two cases are no errors: a merge that was stopped, and an SST that another process merged and that
                    # was then collected.
                    if not isinstance(failed, MergeStopped) and not (
                        isinstance(failed, Corruption)
                        and all(sst.object != failed.object_key for sst in all_ssts(self._newest()))
                    ):
                        raise failed
            finally:
                # Stop the remaining merges if the loop ended early.
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _commit_results(self, done: list[CompactionResult]) -> Compacted | None:
        # Garbage collection deletes an SST that no version names after an hour, and this process may have been
        # suspended for longer. The check makes one request for each written SST.
        written = [sst for merge in done if not merge.compaction.is_trivial_move for sst in merge.outputs]
        existing = map_concurrently(lambda sst: exists(self._store, sst.object), written)
        gone = {sst for sst, is_there in zip(written, existing, strict=True) if not is_there}
        usable = [merge for merge in done if gone.isdisjoint(merge.outputs)]
        landed: list[CompactionResult] = []

        def fits(head: Manifest) -> bool:
            old_ssts, new_ssts = set(all_ssts(head)), set(all_ssts(apply_to_manifest(head, usable)))
            # If a merge does not fit, its inputs are still in use, or were already gone.
            landed[:] = [
                merge
                for merge in usable
                if old_ssts.issuperset(merge.compaction.inputs) and new_ssts.isdisjoint(merge.compaction.inputs)
            ]
            return bool(landed) and not head.retired

        change = Amendment("compaction", lambda draft: apply_to_manifest(draft, usable), fits)
        store, writer = self._store, self._writer
        amended = amend(
            store, self.head, change, by=self.by, now_ms=self.now_ms, writer=writer, take_stats=store.take_stats
        )
        self.head = amended.manifest
        if not amended.changed:
            return None
        return Compacted(
            app=self.head.app,
            stage=self.head.stage,
            version=self.head.version,
            merges=len(landed),
            partitions=tuple(sorted({merge.compaction.partition for merge in landed})),
            inputs=sum(len(merge.compaction.inputs) for merge in landed),
            outputs=sum(len(merge.outputs) for merge in landed),
            bytes_read=sum(merge.compaction.input_bytes for merge in landed),
            bytes_written=sum(merge.output_bytes for merge in landed),
            left_out=len(done) - len(landed),
        )

    def _newest(self) -> Manifest:
        app, version = self.head.app, self.head.version
        newest = history.head(self._store, app, self.head.stage, hint=version)
        self.head = newest or history.read(self._store, app, self.head.stage, version)
        return self.head


@dataclass(slots=True)
class AppCompactor:
    """Compacts the tables of an app, of some stages or of all stages."""

    store: ObjectStore
    cache: SstCache
    app: str
    wanted: tuple[str, ...] = ()
    _: KW_ONLY
    by: str
    threads: int
    now_ms: Callable[[], int]
    stop: runtime.Event
    _compactors: dict[str, StageCompactor | None] = field(default_factory=dict, init=False)

    def merge_once(self, *, full: bool = False, on_version: Callable[[Compacted], None]) -> tuple[Compacted, ...]:
        """Merge until no merge is due, and add an entry to the log of operations. Raises the errors of `merge_due`."""
        done = []
        for compacted in self.merge_due(full=full):
            done.append(compacted)
            on_version(compacted)
        if done:
            versions = ", ".join(f"{compacted.stage}@v{compacted.version}" for compacted in done)
            first = {compacted.stage: compacted.version for compacted in reversed(done)}
            last = {compacted.stage: compacted.version for compacted in done}
            by_stage = {stage: (first[stage] - 1, version) for stage, version in last.items()}
            detail = f"--full, {versions}" if full else versions
            record_operation(self.store, self.app, "compact", detail, self.by, by_stage)
        return tuple(done)

    def watch(
        self,
        every_s: float,
        *,
        on_version: Callable[[Compacted], None],
        on_failure: Callable[[str, Exception], None],
        on_unavailable: Callable[[Unavailable], None],
    ) -> None:
        """Run due merges every `every_s` seconds, until `stop` is set.

        Raises the errors of `plan` at the first check. `on_unavailable` is called if the store does not answer; the
        next check retries.
        """
        plan(self.store, self.app, self.wanted)  # raises if a stage has no table to watch
        record_operation(self.store, self.app, "compact", f"--watch, {', '.join(self.wanted) or 'all tables'}", self.by)
        while not self.stop.is_set():
            try:
                for compacted in self.merge_due(on_failure=on_failure):
                    on_version(compacted)
            except Unavailable as error:
                on_unavailable(error)
            self.stop.wait(every_s)

    def merge_due(
        self, *, full: bool = False, on_failure: Callable[[str, Exception], None] | None = None
    ) -> Iterator[Compacted]:
        """Merge until no merge is due. Yields each new version. May be called repeatedly.

        With `full`, merges each hash range into one run. Makes a listing and a request for each stage if nothing was
        committed since the last call. If a table cannot be merged, `on_failure` receives its stage and the error, and
        the other tables are merged. The error is raised instead if `on_failure` is None, or if the store does not
        answer. Raises the errors of `plan` and `StageCompactor.merge_until_done`, with a note that names the table.
        """
        names = self.wanted or stages_of(self.store, self.app)
        if new := tuple(name for name in names if name not in self._compactors):
            check_exclusion(self.store, self.app, Intent.COMPACT)
            # If this raises, the next call tries the new stages again.
            heads = _heads_with_table(self.store, self.app, new, must_have_table=bool(self.wanted))
            self._compactors |= dict.fromkeys(new)
            by, threads, now_ms, stop = self.by, self.threads, self.now_ms, self.stop
            for head in heads:
                self._compactors[head.stage] = StageCompactor(
                    self.store, self.cache, head, by=by, threads=threads, now_ms=now_ms, stop=stop
                )
        for name in names:
            if (compactor := self._compactors[name]) is None:
                continue
            try:
                yield from compactor.merge_until_done(full=full)
            except Unavailable:
                raise
            except Exception as error:
                error.add_note(f"while compacting {self.app}/{name}")
                if on_failure is None:
                    raise
                on_failure(name, error)
