"""One clone of a trial, and a program that runs in it, up to where the app has read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic

from ... import instants
from ...durations import DAY_MS
from ...errors import Refused
from ...keep.backfill.fill import discard
from ...keep.clone.clone import clone
from ...keep.clone.plan import Terms
from ...keep.migrate.migrate import lines
from ...moments.cut.graph import Cut
from ...moments.cut.resolve import resolve
from ...moments.diff.moments import TableDiff
from ...moments.status.lag import lapsed
from ...moments.take.remove import remove_pins_without_clone
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps
from ..api.app import App
from ..batch.batch_report import BatchReport
from ..batch.schemas import shapes
from ..kafka.archived import archived
from ..kafka.channels import KafkaChannels, group_of
from ..kafka.open import open_kafka
from ..migrate.program import migrate_app
from ..run.news import News
from ..run.options import Options
from ..run.runner import run
from ..run.stopping import Stop, StopRequested
from ..spark.session import running_session
from .plan import Release
from .progress import Ends, check_reached, in_all_to_read
from .sample import sampled

_LOOK_S = 1.0


@dataclass(slots=True)
class CloneRun:
    """One clone, and a program that runs in it."""

    store: ObjectStore
    options: Options
    by: str
    news: News
    stop: Stop
    release: Release
    ends: Ends
    name: str
    """Of the clone."""
    start: Cut
    what: str
    """The program, in words."""
    stages: tuple[str, ...]
    """That run."""
    records: int = 0
    seconds: float = 0.0
    migrated: list[str] = field(default_factory=list)
    chosen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By stage with a table, the columns by which its rows were chosen."""

    @property
    def _keeps(self) -> bool:
        return self.name == self.release.keep

    @contextmanager
    def going(self, program: App, *, is_new: bool = False) -> Iterator[CloneRun]:
        """Make the clone and run the program; inside, it is there. It goes at the end, unless it is to stay.

        A program that `is_new` has the clone migrated to it. Raises `StopRequested` where somebody asked to stop.
        """
        if self._keeps:
            # Its name is the user's: what has it is not this trial's to remove.
            yield self._run(program, is_new=is_new)
            return
        self._drop()
        try:
            yield self._run(program, is_new=is_new)
        finally:
            # Once, however often somebody asks for it meanwhile.
            with self.stop.in_order():
                self._drop()

    def _run(self, program: App, *, is_new: bool) -> CloneRun:
        kafka = archived(open_kafka(self.options.kafka), self.store, self.release.app)
        channels = KafkaChannels(kafka, patience_s=self.options.patience_s)
        # Whatever kills a trial, `clone rm --expired` finds what it left.
        terms = Terms(owner=self.by, reason=f"a trial of {self.release.code}", ttl_ms=0 if self._keeps else DAY_MS)
        clone(
            self.store,
            self.start.ref,
            self.name,
            terms=terms,
            channels=channels,
            by=self.by,
            noted=self._keeps,
        )
        program = replace(program, name=self.name)
        # Spark is asked for the schemas, and would take an answer that nobody waited for as that to the next question.
        with self.stop.in_order():
            if is_new:
                self._migrate(program)
            if self.release.sample is not None:
                spark = running_session()
                assert spark is not None  # noqa: S101  it was started for the trial
                known = shapes(program, spark)
                program, self.chosen_by = sampled(program, known, self.stages, self.release.sample)
        firsts = {stage.name for stage in program.in_order() if not stage.channels} & {*self.stages}
        in_all = in_all_to_read(self.newest(), firsts, self.ends)

        def told(report: BatchReport) -> None:
            self.records += report.rows_in if report.stage in firsts else 0
            of = f" of {in_all:,}" if in_all is not None else ""
            self.news.doing(f"{self.what}: read {self.records:,}{of} records")

        began = monotonic()
        options = replace(self.options, until_caught_up=True, until=self.ends, publishes=False, gc_every_ms=None)
        options = replace(options, archive=False)
        run(program, replace(options, stages=self.stages), told, news=News(self.news.doing), stop=self.stop)
        self.seconds = monotonic() - began
        check_reached(self.newest(), self.stages, self.ends, self.what)
        return self

    def tried(self, found: tuple[TableDiff, ...]) -> Iterator[TableDiff]:
        """Of differences of tables, those of the stages and keys that were tried."""
        for each in found:
            if self.release.sample is not None and each.table in self.chosen_by:
                yield self.release.sample.changes(each, self.chosen_by[each.table])
            elif self.release.sample is None and (not self.release.only or each.table in self.stages):
                yield each

    def newest(self) -> Cut:
        """The clone as it is now."""
        return resolve(self.store, self.name, now_ms=instants.now_ms())

    def _migrate(self, program: App) -> None:
        renames, stages = self.release.renames, self.release.stages
        done = migrate_app(program, self.store, self.options, renames=renames, stages=stages, news=self.news)
        self.migrated = [f"{each.stage}: {line}" for each in done.plan.changes for line in lines(each)]

    def _wait(self) -> None:
        self.news.doing("a trial of the same was broken off within the last minute: is it still there?")
        if self.stop.now.wait(_LOOK_S):
            raise StopRequested

    def _drop(self) -> None:
        """Remove the clone, whatever an earlier call has left of it, and its pin. Killed amidst, the next call does."""
        source = self.release.app
        info = apps.find_app(self.store, self.name)
        if info is not None and (info.origin is None or info.origin.app != source):
            raise Refused(f"app {self.name!r} is none of a trial of {source}, which would have that name")
        if not lapsed(self.store, self.name, self._wait):
            raise Refused(
                f"the same trial of {source} is under way: a runner has its clone, {self.name}",
                hint="wait until that has ended",
            )
        kafka = open_kafka(self.options.kafka)
        topics = [topic for topic in kafka.partition_counts() if topic.startswith(f"{self.name}-")]
        discard(self.store, self.name)
        remove_pins_without_clone(self.store, source, self.name, "")
        if topics:
            kafka.delete_topics(topics)
            kafka.delete_groups([group_of(self.name, stage) for stage in self.start.stages])
