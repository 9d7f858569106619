"""`slackwater trial`: runs a changed program over the app's past input, and compares the results.

A clone at the first moment is migrated if needed, and runs the program up to the second moment's offsets, publishing
nothing. Its tables are compared with the app's own tables at the second moment. A second clone is needed if records
were in flight at that moment, or if the app has sinks. The second clone runs the old program over the same input, and
the two clones are compared instead. At the end, both clones have processed all records, and their sink rows can be
compared one by one.

Both clones are removed at the end, and production is only read. If a trial was killed, a repeated call first removes
the clones of the killed call, and starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from ...common import instants, runtime
from ...common.durations import DAY_MS
from ...pipeline.api.app import App
from ...pipeline.batch.schemas import derive_schemas
from ...pipeline.kafka.archived import with_archives
from ...pipeline.kafka.channels import KafkaChannels, consumer_group
from ...pipeline.kafka.open import open_kafka
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.listener import BatchReport, Callbacks, Listener
from ...pipeline.run.options import Options
from ...pipeline.run.runner import run
from ...pipeline.run.stopping import StopEvent, StopRequested, stop_signals
from ...pipeline.spark.conf import add_to_python_path
from ...pipeline.spark.session import running_session, warm_up
from ...snapshot.change.migrate import describe_stage_change
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import rows_of_sink
from ...snapshot.cut.resolve import resolve
from ...snapshot.diff.equality import surplus_rows, unequal_records
from ...snapshot.diff.moments import StoredCut, TableDiff, diff, new_tables, without_all_expected
from ...store.hot.hot_store import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.hashing import KeyShare
from ..maintenance.removal import Removal
from ..program_changes import migrate_app, open_spark
from .clone import clone, remove_temporary_clone, temporary_clone
from .clone_plan import CloneTerms
from .trial_plan import EndOffsets, Release, TrialPlan, check_reached, count_unread, make_plan, restrict_to_sample

_POSITION_COLUMNS = ("_partition", "_offset", "_row")


@dataclass(frozen=True, slots=True)
class SinkDiff:
    """Rows that only one of two programs wrote for a sink.

    Rows for a topic have the columns key, value and headers, as bytes.
    """

    sink: str
    removed: pa.Table
    added: pa.Table
    rows: tuple[int, int]
    near: int = 0
    """Number of rows that count as equal although their floats differ slightly (`snapshot.diff.equality`)."""

    @property
    def equal(self) -> bool:
        return not self.removed.num_rows and not self.added.num_rows


def sink_diffs(store: ObjectStore, kafka: Kafka, before_cut: Cut, after_cut: Cut) -> tuple[SinkDiff, ...]:
    """Compare the rows that two apps wrote for each sink. Returns the differences by sink, sorted by name.

    Raises `Unavailable`.
    """
    before_rows, after_rows = (dict(_rows(store, kafka, cut)) for cut in (before_cut, after_cut))
    result = []
    for name in sorted({*before_rows, *after_rows}):
        sample = before_rows.get(name, after_rows.get(name))
        assert sample is not None  # noqa: S101  it is one of both
        old, new = (rows.get(name, sample.slice(0, 0)) for rows in (before_rows, after_rows))
        removed, added = surplus_rows(old, new), surplus_rows(new, old)
        rows = (old.num_rows, new.num_rows)
        different = unequal_records(removed, added)
        result.append(SinkDiff(name, *different, rows, removed.num_rows - different[0].num_rows))
    return tuple(result)


def _rows(store: ObjectStore, kafka: Kafka, cut: Cut) -> Iterator[tuple[str, pa.Table]]:
    channels = KafkaChannels(kafka)
    for head in cut.stages.values():
        for name, sink in head.sinks.items():
            tables = [
                rows.drop_columns([p for p in _POSITION_COLUMNS if p in rows.column_names])
                for rows in channels.read(rows_of_sink(store, head, name, 0, sink.since - 1, sink.sent))
            ]
            yield name, pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


_POLL_S = 1.0


@dataclass(slots=True)
class CloneRun:
    """Run of a program in a temporary clone."""

    store: ObjectStore
    options: Options
    by: str
    listener: Listener
    stop: StopEvent
    release: Release
    ends: EndOffsets
    name: str
    ref: str
    start: Cut
    label: str
    stages: tuple[str, ...]
    records: int = 0
    seconds: float = 0.0
    migrated: list[str] = field(default_factory=list)
    shares: Mapping[str, KeyShare] = field(default_factory=dict)

    @contextmanager
    def running(self, program: App, *, is_new: bool = False) -> Iterator[CloneRun]:
        """Create the clone, run the program, and remove the clone on exit, unless the user asked to keep it.

        If `is_new`, the clone is first migrated to the program. Raises `StopRequested` after a stop signal.
        """
        is_kept = self.name == self.release.keep
        kafka = with_archives(open_kafka(self.options.kafka, lambda: self.store), self.store, self.release.app)
        reason = f"a trial of {self.release.code}"
        create = partial(
            clone,
            self.store,
            self.ref,
            self.name,
            at=self.start,
            channels=KafkaChannels(kafka, patience_s=self.options.patience_s),
            # With a time to live, `clone rm --expired` removes the clone of a killed trial.
            terms=CloneTerms(owner=self.by, reason=reason, ttl_ms=0 if is_kept else DAY_MS),
            by=self.by,
            is_logged=is_kept,
        )
        if is_kept:
            # The user chose the name, so an app of that name must not be removed.
            create()
            yield self._run(program, is_new=is_new)
            return
        source = self.start.app
        remove = partial(remove_temporary_clone, self.store, source, self.name, reason, self._remove_topics, self._wait)
        # Repeated stop signals must not interrupt the removal.
        with temporary_clone(create, remove, self.stop.uninterrupted):
            yield self._run(program, is_new=is_new)

    def _run(self, program: App, *, is_new: bool) -> CloneRun:
        program = replace(program, name=self.name)
        # Py4J would mistake the answer of an interrupted call for that of the next call.
        with self.stop.uninterrupted():
            if is_new:
                self._migrate(program)
            if self.release.sample is not None:
                spark = running_session()
                assert spark is not None  # noqa: S101  it was started for the trial
                shapes_by_stage = derive_schemas(program, spark)
                program, self.shares = restrict_to_sample(program, shapes_by_stage, self.stages, self.release.sample)
        sources = {stage.name for stage in program.stages_in_order() if not stage.channels} & {*self.stages}
        total = count_unread(self.newest_cut(), sources, self.ends)

        def report_progress(report: BatchReport) -> None:
            self.records += report.rows_in if report.stage in sources else 0
            of = f" of {total:,}" if total is not None else ""
            self.listener.on_activity(f"{self.label}: read {self.records:,}{of} records")

        began = runtime.monotonic()
        options = replace(self.options, until_caught_up=True, until=self.ends, publishes=False, gc_every_ms=None)
        options = replace(options, archive=False)
        run(
            program,
            replace(options, stages=self.stages),
            Callbacks(self.listener.on_activity, report_progress),
            stop=self.stop,
        )
        self.seconds = runtime.monotonic() - began
        check_reached(self.newest_cut(), self.stages, self.ends, self.label)
        return self

    @property
    def compared_tables(self) -> Mapping[str, KeyShare | None] | None:
        """Share of keys to compare, by table (None for all keys); None to compare all tables in full."""
        if self.release.sample is not None:
            return self.shares
        return dict.fromkeys(self.stages) if self.release.only else None

    def newest_cut(self) -> Cut:
        return resolve(self.store, self.name, now_ms=instants.now_ms())

    def _migrate(self, program: App) -> None:
        renames, stages = self.release.renames, self.release.stages
        done = migrate_app(program, self.store, self.options, renames=renames, stages=stages, listener=self.listener)
        self.migrated = [
            f"{change.stage}: {line}" for change in done.plan.changes for line in describe_stage_change(change)
        ]

    def _wait(self) -> None:
        self.listener.on_activity(
            "the same trial was interrupted within the last minute: waiting to see if its runner is gone"
        )
        if self.stop.immediate.wait(_POLL_S):
            raise StopRequested

    def _remove_topics(self, _removal: Removal) -> None:
        kafka = open_kafka(self.options.kafka)
        if topics := [topic for topic in kafka.partition_counts() if topic.startswith(f"{self.name}-")]:
            kafka.delete_topics(topics)
            kafka.delete_groups([consumer_group(self.name, stage) for stage in self.start.stages])


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial."""

    app: str
    start: Cut
    end: Cut
    tables: tuple[TableDiff, ...]
    sinks: tuple[SinkDiff, ...]
    unknown: tuple[str, ...]
    """Sinks that were not compared, because the old program did not run in the trial."""
    records: int
    seconds: float
    beside: bool
    """True if the old program ran over the same input; False if the result was compared with the app itself."""
    migrated: tuple[str, ...]
    kept: str = ""
    not_allowed: tuple[str, ...] = ()
    """Failed queries of expected differences, each with the reason. The differences are then reported."""
    new_tables: Mapping[str, int] = field(default_factory=dict)
    """Approximate number of rows in tables that only the changed program has. They are not compared."""

    @property
    def same(self) -> bool:
        """True if no row differs. New tables and changed columns do not count: the migration lists them."""
        return not any(len(table.changes) for table in self.tables) and all(
            difference.equal for difference in self.sinks
        )


def make_trial_plan(release: Release, options: Options) -> TrialPlan:
    """Plan a trial, with all checks that need no Spark. Raises the errors of `make_plan`."""
    add_to_python_path(options.py_files)
    return make_plan(_store(options), release)


def run_trial(
    release: Release, options: Options, cache: SstCache, *, by: str, listener: Listener | None = None
) -> TrialResult:
    """Run a trial of a release. A repeated call starts from the beginning."""
    with stop_signals() as stop, stop.interruptible():
        return _run_planned(make_trial_plan(release, options), options, cache, by, listener or Listener(), stop)
    raise KeyboardInterrupt


def _run_planned(
    plan: TrialPlan, options: Options, cache: SstCache, by: str, listener: Listener, stop: StopEvent
) -> TrialResult:
    release, store = plan.release, _store(options)
    number = xxh3_64_hexdigest(f"{release.code} {release.start}".encode())[:8]
    name = f"{release.app[:40]}-trial-{number}"
    clone_run = partial(CloneRun, store, options, by, listener, stop, release, plan.ends)
    with ExitStack() as stack:
        is_cold = running_session() is None
        spark = stack.enter_context(open_spark("trial", plan.new, options, master="local[*]"))
        if is_cold:
            # Creating the clone leaves cores idle.
            warm_up(spark)
        new_run = clone_run(release.keep or name, release.start, plan.start, "the changed program", plan.new_stages)
        stack.enter_context(new_run.running(plan.new, is_new=True))
        compared, old_run = plan.end, None
        if plan.old is not None:
            begin = (release.start, plan.start) if plan.sinks else (release.end, plan.end)
            old_run = clone_run(f"{name}-before", *begin, "the old program", plan.old_stages)
            stack.enter_context(old_run.running(plan.old))
            compared = old_run.newest_cut()
        listener.on_activity("comparing")
        newest, tried = new_run.newest_cut(), new_run.compared_tables
        cuts = StoredCut(store, compared), StoredCut(store, newest)
        diffs = diff(cache, *cuts, tables=tried, ignore_new=True)
        tables, failed_queries = without_all_expected(diffs, release.allow)
        sinks = sink_diffs(store, open_kafka(options.kafka), compared, newest) if old_run is not None else ()
        new = {name: table for name, table in new_tables(compared, newest).items() if tried is None or name in tried}
        return TrialResult(
            release.app,
            plan.start,
            plan.end,
            tables,
            sinks,
            () if old_run is not None else tuple(sorted(plan.sinks)),
            new_run.records,
            new_run.seconds,
            old_run is not None,
            tuple(new_run.migrated),
            release.keep,
            failed_queries,
            {name: sum(sst.rows - sst.tombstones for sst in table.ssts) for name, table in new.items()},
        )


def _store(options: Options) -> ObjectStore:
    return open_store(options.store, patience_s=options.patience_s, settings=options.s3)
