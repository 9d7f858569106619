"""Compacting the tables of an app in a process of its own: what is due, and doing it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from ...errors import Refused, Unavailable
from ...moments.cut.moments import heads_of, stages_of
from ...moments.take.audit_log import record
from ...store.compaction.picker import pick_for
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.commit import is_retired
from ...store.versions.manifest import Manifest
from .stage_compactor import Compacted, StageCompactor


@dataclass(frozen=True, slots=True)
class Merge:
    """One compaction that is due: how many SSTs, their bytes and levels, ascending, and that of what they become."""

    stage: str
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

    Raises `NotFound` where there is no such app or stage, `Refused` where a stage that is wanted keeps no table, or is
    retired, and `Unavailable`.
    """
    return tuple(
        Merge(
            stage=head.stage,
            partition=one.partition,
            inputs=len(one.inputs),
            bytes=sum(sst.bytes for sst in one.inputs),
            levels=tuple(sorted({sst.level for sst in one.inputs})),
            level=one.output_level,
            moves=one.moves,
            drops_tombstones=one.drops_tombstones,
        )
        for head in _tables_of(store, app, wanted)
        if not head.retired
        for one in pick_for(head, full=full)
    )


def merged_last(store: ObjectStore, app: str, wanted: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """The heads that are compactions: nothing has come since. Arguments, requests and errors as of `plan`."""
    return tuple(head for head in _tables_of(store, app, wanted) if head.kind == "compaction")


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
    """Merges that go on at once."""
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
            record(self.store, self.app, "compact", f"--full, {versions}" if full else versions, self.by)
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
        """Merge until nothing is due, or with `full` all; yields each version as it is committed. To be asked again.

        A listing, and a request a stage, when nothing was committed since it was asked last. `failed` is told of a
        stage whose table could not be merged, and why, and the other tables are; without it, and when the store does
        not answer, that ends it. Raises as `plan` and `StageCompactor.until_done` do; what nobody expected has a note
        that says which table it was.
        """
        names = self.wanted or stages_of(self.store, self.app)
        if new := tuple(name for name in names if name not in self._stages):
            heads = _tables_of(self.store, self.app, new, all_have_one=bool(self.wanted))
            self._stages |= dict.fromkeys(new) | {
                head.stage: StageCompactor(
                    self.store, self.cache, head, by=self.by, threads=self.threads, now_ms=self.now_ms, stop=self.stop
                )
                for head in heads
            }
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


def _tables_of(
    store: ObjectStore, app: str, wanted: tuple[str, ...], *, all_have_one: bool = True
) -> tuple[Manifest, ...]:
    """The heads of the stages that keep a table."""
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
