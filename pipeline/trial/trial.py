"""`slackwater trial`: a changed program over the very input that an app has read between two moments, and what differs.

A clone at the first moment is migrated where the program asks for that, and runs the program up to the offsets of the
second one, publishing nothing. Its tables are compared with the app's own at the second moment. Where rows were on the
way then, or the app has sinks, the program of before runs over the same input in a clone of its own, and that is what
is compared with: then both have worked off all, and what sinks were given can be told row by row.

Both clones go at the end. The app is only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, sleep

from xxhash import xxh3_64_hexdigest

from ... import instants
from ...durations import DAY_MS
from ...errors import Refused, Usage
from ...keep.backfill.fill import discard
from ...keep.clone.clone import clone
from ...keep.clone.plan import Terms
from ...keep.migrate.migrate import lines
from ...moments.cut.graph import Cut
from ...moments.cut.in_flight import in_flight
from ...moments.cut.resolve import resolve
from ...moments.diff.allowed import without
from ...moments.diff.moments import StoredCut, TableDiff, diff
from ...moments.status.lag import lapsed
from ...moments.take.remove import remove_pins_without_clone
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps
from ..batch.batch_report import BatchReport
from ..batch.schemas import shapes
from ..kafka.channels import KafkaChannels, group_of
from ..kafka.open import open_kafka
from ..migrate.program import migrate_app, spark_of
from ..run.news import News
from ..run.options import Options
from ..run.program import load_app
from ..run.runner import run
from ..spark.conf import on_path
from ..spark.session import running_session
from .sample import Sample, sampled, up_to
from .sent import SinkDiff, sink_diffs

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Release:
    """What is tried, and on what."""

    app: str
    code: str
    """The file of the changed program."""
    start: str
    """The moment, a ref of the app, from which its input is taken."""
    end: str
    """And the one up to which."""
    before: str = ""
    """The file of the program that ran; empty where that is not here."""
    keep: str = ""
    """The name under which the clone stays; empty for none."""
    allow: tuple[str, ...] = ()
    """Queries that name the keys whose differences are meant, as `moments.diff.allowed` takes them."""
    only: tuple[str, ...] = ()
    """The stages that are tried, with those that they read from; all without."""
    sample: Sample | None = None
    """The keys that are tried; all without."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Columns that have another name in the changed program, old to new."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stages that do."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a changed program did with the input of an app."""

    app: str
    start: Cut
    end: Cut
    tables: tuple[TableDiff, ...]
    """How each table differs from that of before."""
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

    @property
    def same(self) -> bool:
        """Whether no row differs; that a table has other columns, the migration says."""
        return not any(len(each.changes) for each in self.tables) and all(each.equal for each in self.sinks)


def trial(release: Release, options: Options, cache: SstCache, *, by: str, news: News | None = None) -> Trial:
    """Try a release. A call that was interrupted begins anew with the same call.

    Raises:
        Usage: the second moment is not after the first.
        NotFound: there is no such app or moment, or a topic is gone.
        Refused: the program does not fit the app's history, Kafka has not the records any more, rows are on the way at
            the second moment and the program of before is not here, or the same trial is under way.
    """
    on_path(options.py_files)
    news = news or News()
    store = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    now_ms = instants.now_ms()
    start, end = (resolve(store, ref, now_ms=now_ms) for ref in (release.start, release.end))
    _check_order(release, start, end)
    sinks = {name for head in end.stages.values() for name in head.sinks}
    uneven, ends = _ends(end)
    if (in_flight(store, end) or uneven) and not release.before:
        raise Refused(
            f"records are on the way between the stages of {release.app} at {end.ref}, so its tables are not those of "
            "all that it has read",
            hint="--before FILE, the program that ran, has a clone work them off; or choose a moment without",
        )
    beside = bool(release.before) and bool(in_flight(store, end) or uneven or sinks)
    name = (
        release.keep or f"{release.app[:40]}-trial-{xxh3_64_hexdigest(f'{release.code} {release.start}'.encode())[:8]}"
    )
    act = partial(_Run, store, options, release.app, by, news, ends)
    with ExitStack() as stack:
        stack.enter_context(spark_of("trial", load_app(release.code, name=release.app), options, master="local[*]"))
        made = stack.enter_context(act(name, start, release, keeps=bool(release.keep)).going(release.code, new=True))
        compared, old = end, None
        if beside:
            old = stack.enter_context(
                act(f"{name[:55]}-before", start if sinks else end, release).going(release.before)
            )
            compared = old.newest()
        news.doing("comparing")
        found = diff(cache, StoredCut(store, compared), StoredCut(store, made.newest()), new_columns=False)
        tables = tuple(without(each, release.allow) for each in made.tried(found))
        both = sink_diffs(store, open_kafka(options.kafka), old.newest(), made.newest()) if old is not None else ()
        unknown = () if beside else tuple(sorted(sinks))
        return Trial(
            release.app,
            start,
            end,
            tables,
            both,
            unknown,
            made.records,
            made.seconds,
            beside,
            tuple(made.migrated),
            release.keep,
        )


def _check_order(release: Release, start: Cut, end: Cut) -> None:
    for cut, ref in ((start, release.start), (end, release.end)):
        if cut.app != release.app:
            raise Usage(f"{ref} is a moment of {cut.app}, and {release.app} is tried")
    if start.versions == end.versions or any(end.versions.get(each, 0) < at for each, at in start.versions.items()):
        raise Usage(
            f"{release.end} is not after {release.start}: expected a span in which {release.app} has read something",
            hint=f"--from an earlier moment: `slackwater log {release.app}` shows what there is",
        )


def _ends(end: Cut) -> tuple[bool, dict[str, tuple[int, ...]]]:
    """How far users' topics are read at a moment, and whether some stages had read further in one than others."""
    found: dict[str, tuple[int, ...]] = {}
    uneven = False
    for head in end.stages.values():
        for read in head.inputs.values():
            if not read.upstream:
                known = found.setdefault(read.topic, read.offsets)
                uneven |= known != read.offsets
                found[read.topic] = max(known, read.offsets)
    return uneven, found


@dataclass(slots=True)
class _Run:
    """One clone, and a program that runs in it."""

    store: ObjectStore
    options: Options
    source: str
    by: str
    news: News
    ends: Mapping[str, tuple[int, ...]]
    name: str
    start: Cut
    release: Release
    keeps: bool = False
    records: int = 0
    seconds: float = 0.0
    migrated: list[str] = field(default_factory=list)
    stages: tuple[str, ...] = ()
    """That run."""
    chosen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By stage with a table, the columns by which its rows were chosen."""

    @contextmanager
    def going(self, code: str, *, new: bool = False) -> Iterator[_Run]:
        """Make the clone and run the program; inside, it is there. It goes at the end, unless it is to stay."""
        self._drop()
        try:
            channels = KafkaChannels(open_kafka(self.options.kafka), patience_s=self.options.patience_s)
            # Whatever kills a trial, `clone rm --expired` finds what it left.
            terms = Terms(owner=self.by, reason=f"a trial of {code}", ttl_ms=0 if self.keeps else DAY_MS)
            clone(self.store, self.start.ref, self.name, terms=terms, channels=channels, by=self.by)
            program = load_app(code, name=self.name)
            if new:
                done = migrate_app(
                    program,
                    self.store,
                    self.options,
                    renames=self.release.renames,
                    stages=self.release.stages,
                    news=self.news,
                )
                self.migrated = [f"{each.stage}: {line}" for each in done.plan.changes for line in lines(each)]
            self.stages = up_to(program, self.release.only)
            if self.release.sample is not None:
                spark = running_session()
                assert spark is not None  # noqa: S101  it was started for the trial
                sample = self.release.sample
                program, self.chosen_by = sampled(program, shapes(program, spark), self.stages, sample)
            firsts = {stage.name for stage in program.in_order() if not stage.channels}

            def told(report: BatchReport) -> None:
                self.records += report.rows_in if report.stage in firsts else 0
                self.news.doing(f"{self.name}: {self.records:,} records")

            began = monotonic()
            options = replace(self.options, until_caught_up=True, until=self.ends, publishes=False, gc_every_ms=None)
            options = replace(options, stages=self.stages)
            run(program, options, told, news=News(self.news.doing))
            self.seconds = monotonic() - began
            yield self
        finally:
            if not self.keeps:
                self._drop()

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

    def _wait(self) -> None:
        self.news.doing(f"a trial that was broken off had {self.name} within the last minute: is it still there?")
        sleep(_LOOK_S)

    def _drop(self) -> None:
        """Remove the clone, whatever an earlier call has left of it, and its pin. Killed amidst, the next call does."""
        info = apps.find_app(self.store, self.name)
        if info is not None and (info.origin is None or info.origin.app != self.source or self.keeps):
            raise Refused(f"app {self.name!r} exists already", hint="--keep takes a name that no app has")
        if not lapsed(self.store, self.name, self._wait):
            raise Refused(f"the same trial is under way: a runner has {self.name}", hint="wait until that has ended")
        kafka = open_kafka(self.options.kafka)
        topics = [topic for topic in kafka.partition_counts() if topic.startswith(f"{self.name}-")]
        discard(self.store, self.name)
        remove_pins_without_clone(self.store, self.source, self.name, "")
        if topics:
            kafka.delete_topics(topics)
            kafka.delete_groups([group_of(self.name, stage) for stage in self.start.stages])
