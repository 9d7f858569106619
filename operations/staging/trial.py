"""`slackwater trial`: a changed program over the very input that an app has read between two moments, and what differs.

A clone at the first moment is migrated where the program asks for that, and runs the program up to the offsets of the
second one, publishing nothing. Its tables are compared with the app's own at the second moment. Where rows were on the
way then, or the app has sinks, the program of before runs over the same input in a clone of its own, and that is what
is compared with: then both have worked off all, and what sinks were given can be told row by row.

Both clones go at the end. The app is only read. What an earlier call has left of a clone goes first: killed anywhere,
the same call begins anew. Until then the clone is an app like any other, or none; what is left of one that was being
removed is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from ...common import instants
from ...common.durations import DAY_MS
from ...pipeline.api.app import App
from ...pipeline.batch.batch_report import BatchReport
from ...pipeline.batch.schemas import shapes
from ...pipeline.kafka.archived import archived
from ...pipeline.kafka.channels import KafkaChannels, group_of
from ...pipeline.kafka.open import open_kafka
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.listener import Callbacks, Listener
from ...pipeline.run.options import Options
from ...pipeline.run.runner import run
from ...pipeline.run.stopping import Stop, StopRequested, stop_signals
from ...pipeline.spark.conf import on_path
from ...pipeline.spark.session import running_session, warm_up
from ...snapshot.change.migrate import lines
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import InFlight
from ...snapshot.cut.resolve import resolve
from ...snapshot.diff.equality import only_in, unequal_records
from ...snapshot.diff.moments import StoredCut, TableDiff, diff, new_tables, without_all_expected
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.key_share import KeyShare
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..maintenance.removal import Removal
from ..program_changes.program import migrate_app, spark_of
from .clone import ScratchClone
from .clone_plan import Terms
from .sample import sampled
from .trial_plan import Ends, Release, TrialPlan, check_reached, in_all_to_read, make_plan

_PLACES = ("_partition", "_offset", "_row")


@dataclass(frozen=True, slots=True)
class SinkDiff:
    """Rows of one sink that only one of two programs gave it. Of records: key, value and headers, as bytes."""

    sink: str
    removed: pa.Table
    """That only the first gave."""
    added: pa.Table
    """That only the second gave."""
    rows: tuple[int, int]
    """How many each gave."""
    near: int = 0
    """Records whose floats differ only within the tolerance of `snapshot.diff.equality`: they count as equal."""

    @property
    def equal(self) -> bool:
        """Whether both gave the same rows, in whatever order."""
        return not self.removed.num_rows and not self.added.num_rows


def sink_diffs(store: ObjectStore, kafka: Kafka, one: Cut, other: Cut) -> tuple[SinkDiff, ...]:
    """How what two apps wrote for their sinks differs, by the sinks' names. Raises `Unavailable`."""
    mine, theirs = (dict(_rows(store, kafka, cut)) for cut in (one, other))
    found = []
    for name in sorted({*mine, *theirs}):
        known = mine.get(name, theirs.get(name))
        assert known is not None  # noqa: S101  it is one of both
        before, after = (rows.get(name, known.slice(0, 0)) for rows in (mine, theirs))
        removed, added = only_in(before, after), only_in(after, before)
        rows = (before.num_rows, after.num_rows)
        others = unequal_records(removed, added)
        found.append(SinkDiff(name, *others, rows, removed.num_rows - others[0].num_rows))
    return tuple(found)


def _rows(store: ObjectStore, kafka: Kafka, cut: Cut) -> Iterator[tuple[str, pa.Table]]:
    channels = KafkaChannels(kafka)
    for head in cut.stages.values():
        for name in head.sinks:
            tables = [
                rows.drop_columns([p for p in _PLACES if p in rows.column_names])
                for rows in channels.read(_all(store, head, name))
            ]
            yield name, pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def _all(store: ObjectStore, head: Manifest, name: str) -> InFlight:
    """All that was written for a sink since it began, as records on the way that nobody has read."""
    sink = head.sinks[name]
    versions = history.after(store, head.app, head.stage, sink.since - 1)
    attempts = tuple(attempt for each in versions if name in each.sinks for attempt in each.sinks[name].attempts)
    where = (name, sink.topic, head.stage, "", (0,), (sink.end,))
    return InFlight(*where, attempts, sink.sent, (), sink.since, head.version, "", sink.topic_id)


_LOOK_S = 1.0


@dataclass(slots=True)
class CloneRun:
    """One clone, and a program that runs in it."""

    store: ObjectStore
    options: Options
    by: str
    listener: Listener
    stop: Stop
    release: Release
    ends: Ends
    name: str
    """Of the clone."""
    ref: str
    """The moment at which it begins,"""
    start: Cut
    """and what that was when the trial began."""
    what: str
    """The program, in words."""
    stages: tuple[str, ...]
    """That run."""
    records: int = 0
    seconds: float = 0.0
    migrated: list[str] = field(default_factory=list)
    shares: Mapping[str, KeyShare] = field(default_factory=dict)
    """By stage with a table, the keys whose rows were chosen."""

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
            self._clone.make(noted=True)
            yield self._run(program, is_new=is_new)
            return
        # It goes once, however often somebody asks for it meanwhile.
        with self._clone.there(self.stop.in_order):
            yield self._run(program, is_new=is_new)

    @property
    def _clone(self) -> ScratchClone:
        kafka = archived(open_kafka(self.options.kafka), self.store, self.release.app)
        channels = KafkaChannels(kafka, patience_s=self.options.patience_s)
        # Whatever kills a trial, `clone rm --expired` finds what it left.
        terms = Terms(owner=self.by, reason=f"a trial of {self.release.code}", ttl_ms=0 if self._keeps else DAY_MS)
        begin = self.ref, self.start
        return ScratchClone(self.store, *begin, self.name, terms, channels, self.by, self._forget, self._wait)

    def _run(self, program: App, *, is_new: bool) -> CloneRun:
        program = replace(program, name=self.name)
        # Spark is asked for the schemas, and would take an answer that nobody waited for as that to the next question.
        with self.stop.in_order():
            if is_new:
                self._migrate(program)
            if self.release.sample is not None:
                spark = running_session()
                assert spark is not None  # noqa: S101  it was started for the trial
                known = shapes(program, spark)
                program, self.shares = sampled(program, known, self.stages, self.release.sample)
        firsts = {stage.name for stage in program.in_order() if not stage.channels} & {*self.stages}
        in_all = in_all_to_read(self.newest(), firsts, self.ends)

        def told(report: BatchReport) -> None:
            self.records += report.rows_in if report.stage in firsts else 0
            of = f" of {in_all:,}" if in_all is not None else ""
            self.listener.doing(f"{self.what}: read {self.records:,}{of} records")

        began = monotonic()
        options = replace(self.options, until_caught_up=True, until=self.ends, publishes=False, gc_every_ms=None)
        options = replace(options, archive=False)
        run(program, replace(options, stages=self.stages), Callbacks(self.listener.doing, told), stop=self.stop)
        self.seconds = monotonic() - began
        check_reached(self.newest(), self.stages, self.ends, self.what)
        return self

    @property
    def tried(self) -> Mapping[str, KeyShare | None] | None:
        """The tables that were tried, each with the share of its keys, or None for all of them; None for all tables."""
        if self.release.sample is not None:
            return self.shares
        return dict.fromkeys(self.stages) if self.release.only else None

    def newest(self) -> Cut:
        """The clone as it is now."""
        return resolve(self.store, self.name, now_ms=instants.now_ms())

    def _migrate(self, program: App) -> None:
        renames, stages = self.release.renames, self.release.stages
        done = migrate_app(program, self.store, self.options, renames=renames, stages=stages, listener=self.listener)
        self.migrated = [f"{each.stage}: {line}" for each in done.plan.changes for line in lines(each)]

    def _wait(self) -> None:
        self.listener.doing("a trial of the same was broken off within the last minute: is it still there?")
        if self.stop.now.wait(_LOOK_S):
            raise StopRequested

    def _forget(self, _removal: Removal) -> None:
        """Remove what Kafka has of the clone."""
        kafka = open_kafka(self.options.kafka)
        if topics := [topic for topic in kafka.partition_counts() if topic.startswith(f"{self.name}-")]:
            kafka.delete_topics(topics)
            kafka.delete_groups([group_of(self.name, stage) for stage in self.start.stages])


@dataclass(frozen=True, slots=True)
class Trial:
    """What a changed program did with the input of an app."""

    app: str
    start: Cut
    end: Cut
    tables: tuple[TableDiff, ...]
    """How each table differs from that of before, in the columns that both have."""
    sinks: tuple[SinkDiff, ...]
    """Likewise what each sink was given."""
    unknown: tuple[str, ...]
    """Sinks that are not compared, as nobody knows what the program of before gave them."""
    records: int
    """How many records of users' topics it read."""
    seconds: float
    """From its first batch to its last."""
    beside: bool
    """Whether the program of before ran over the same input; else it is compared with the app itself."""
    migrated: tuple[str, ...]
    """What the migration changed, a line each."""
    kept: str = ""
    """The clone that stays."""
    not_allowed: tuple[str, ...] = ()
    """Queries for differences that are meant that could not be carried out, each with the reason: these count."""
    new_tables: Mapping[str, int] = field(default_factory=dict)
    """Those that only the changed program has, and about how many rows: there is nothing to compare them with."""

    @property
    def same(self) -> bool:
        """Whether no row differs; that a table is new or has other columns, the migration says."""
        return not any(len(each.changes) for each in self.tables) and all(each.equal for each in self.sinks)


def plan_of(release: Release, options: Options) -> TrialPlan:
    """What is to be done, with all checked that can be without Spark. Raises as `make_plan`."""
    on_path(options.py_files)
    return make_plan(_store(options), release)


def trial(release: Release, options: Options, cache: SstCache, *, by: str, listener: Listener | None = None) -> Trial:
    """Try a release. A call that was interrupted begins anew with the same call.

    Raises as `StoredApp.trial`, and `Refused` where the same trial is under way.
    """
    with stop_signals() as stop, stop.at_once():
        return _tried(plan_of(release, options), options, cache, by, listener or Listener(), stop)
    raise KeyboardInterrupt


def _tried(plan: TrialPlan, options: Options, cache: SstCache, by: str, listener: Listener, stop: Stop) -> Trial:
    release, store = plan.release, _store(options)
    number = xxh3_64_hexdigest(f"{release.code} {release.start}".encode())[:8]
    name = f"{release.app[:40]}-trial-{number}"
    act = partial(CloneRun, store, options, by, listener, stop, release, plan.ends)
    with ExitStack() as stack:
        is_cold = running_session() is None
        spark = stack.enter_context(spark_of("trial", plan.new, options, master="local[*]"))
        if is_cold:
            # While the clone is made, one core at most has something to do.
            warm_up(spark)
        made = act(release.keep or name, release.start, plan.start, "the changed program", plan.new_stages)
        stack.enter_context(made.going(plan.new, is_new=True))
        compared, old = plan.end, None
        if plan.old is not None:
            begin = (release.start, plan.start) if plan.sinks else (release.end, plan.end)
            old = act(f"{name}-before", *begin, "the program of before", plan.old_stages)
            stack.enter_context(old.going(plan.old))
            compared = old.newest()
        listener.doing("comparing")
        newest, tried = made.newest(), made.tried
        cuts = StoredCut(store, compared), StoredCut(store, newest)
        found = diff(cache, *cuts, tables=tried, ignore_new=True)
        tables, wrong = without_all_expected(found, release.allow)
        both = sink_diffs(store, open_kafka(options.kafka), compared, newest) if old is not None else ()
        new = {name: each for name, each in new_tables(compared, newest).items() if tried is None or name in tried}
        return Trial(
            release.app,
            plan.start,
            plan.end,
            tables,
            both,
            () if old is not None else tuple(sorted(plan.sinks)),
            made.records,
            made.seconds,
            old is not None,
            tuple(made.migrated),
            release.keep,
            wrong,
            {name: sum(sst.rows - sst.tombstones for sst in each.ssts) for name, each in new.items()},
        )


def _store(options: Options) -> ObjectStore:
    return open_store(options.store, patience_s=options.patience_s, settings=options.s3)
