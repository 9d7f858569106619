"""`slackwater migrate --backfill`: what a migration added, computed over the past beside the running app."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession
from ulid import ULID

from ... import instants
from ...errors import NotFound, Refused
from ...snapshot.backfill.scratch import discard, sweep
from ...snapshot.backfill.swap import swap
from ...snapshot.backfill.targets import Left, Target, backfillable, nothing
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.names import version_of
from ...snapshot.cut.resolve import resolve
from ...snapshot.migrate.migrate import Migrated, finish_earlier
from ...snapshot.migrate.migration import planned
from ...snapshot.take.audit_log import record, whoami
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Backfill, Manifest, Program
from ..api.app import App
from ..batch.batch_report import BatchReport
from ..batch.claim import program_of
from ..kafka import records, topics
from ..kafka.consumer_groups import delete_groups, group_of
from ..run.news import News
from ..run.options import Options
from ..run.program import load_app
from ..run.runner import run
from ..spark.session import spark_session
from ..spark.shipping import on_path
from .left_out import Offsets, left_out
from .program import declared, migrate_app, with_spark
from .scratch import scratch_program

_SETTLES_S = 30.0
"""How long to wait for a batch that was under way before what it may need is removed."""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Filled:
    """Columns that were computed over the past, or would be.

    Attributes:
        target: What.
        starts: Where it begins, by user's topic as declared: from there on the values are complete.
        whole: Whether nothing is missing: the stage itself began there.
        records: How many offsets were to be read.
        from_ms: The time of the earliest record, in ms since 1970; None where there is none.
        version: The stage's version that has the values; 0 for none.
        keys: For how many keys there are values.
        ssts: Objects that were rewritten for it.
        bytes: Theirs.
        needed: The app that computed it, where that stays for now: a batch under way may need it.
    """

    target: Target
    starts: Mapping[str, tuple[int, ...]]
    whole: bool
    records: int
    from_ms: int | None
    version: int = 0
    keys: int = 0
    ssts: int = 0
    bytes: int = 0
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What `migrate --backfill` did, or would do."""

    migrated: Migrated
    filled: tuple[Filled, ...]
    left: tuple[Left, ...]


def backfill_file(
    path: str,
    *,
    app: str | None,
    options: Options,
    renames: Mapping[str, str],
    stages: Mapping[str, str] | None = None,
    since: str = "",
    dry_run: bool = False,
    news: News | None = None,
    settles_s: float = _SETTLES_S,
) -> Backfilled:
    """Migrate an app to the program that a file declares, if it is not, and compute what was added over the past.

    The app may run meanwhile, with that program.

    Args:
        path: The file.
        app: The app, where it is not the one that the file names.
        options: Where the store and Kafka are, and how Spark is run.
        renames: As of `migrate_file`.
        stages: Likewise.
        since: A ref of the app: from that moment on; empty for all that its stages have read and Kafka has.
        dry_run: Only look; nothing is changed.
        news: Told what goes on.
        settles_s: How long to wait for batches under way before what was computed is removed.

    Raises:
        Refused: Nothing that was added can be computed; or it was stopped, and the same call goes on. Others as
            `migrate_file`, `runner.run` and `swap`.
    """
    news = news or News()
    on_path(options.py_files)
    program = load_app(path, name=app)
    store = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    if not options.kafka:
        raise NotFound("Kafka", "brokers", hint="the past is read from there: add --kafka")
    topics.wait_for(options.kafka, options.patience_s)
    running = SparkSession.getActiveSession()
    news.doing("starting Spark")
    with spark_session(
        f"slackwater backfill {program.name}",
        master=None if running is not None else options.master,
        conf=options.spark_conf,
        py_files=options.py_files,
    ):
        finished = 0 if dry_run else finish_earlier(store, program.name, now_ms=instants.now_ms())
        act = partial(migrate_app, program, store, options, renames=renames, stages=stages, news=news)
        migrated = act(dry_run=True)
        cut = resolve(store, since, now_ms=instants.now_ms()) if since else None
        if cut is not None and cut.app != program.name:
            raise Refused(f"{since} is a moment of {cut.app}, and {program.name} is backfilled")
        at_work = _AtWork(program, store, options, news, settles_s)
        found, left = at_work.find(cut, migrated)
        if not found and (refused := nothing(left, program.name)) is not None:
            raise refused
        if not dry_run:
            migrated = replace(act(dry_run=False), finished=finished)
            found, left = at_work.find(cut)
            found = tuple(map(at_work.fill, found))
        return Backfilled(migrated, found, left)


class _AtWork:
    """Backfills of one app."""

    def __init__(self, program: App, store: ObjectStore, options: Options, news: News, settles_s: float) -> None:
        self._program, self._store, self._options, self._news = program, store, options, news
        self._settles_s = settles_s
        changed = with_spark(program, store, options, news)
        self._declared = declared(changed.app, changed.shapes)
        info = apps.read_app(store, program.name)
        self._topics = dict(info.origin.topics) if info.origin is not None else {}

    def find(self, since: Cut | None, before: Migrated | None = None) -> tuple[tuple[Filled, ...], tuple[Left, ...]]:
        """What there is to do, and what cannot be done; `before` is a migration that is not done yet.

        Of what an earlier call left, what is needed no more is removed then.
        """
        heads = heads_of(self._store, self._program.name, history.list_stages(self._store, self._program.name))
        if before is not None:
            heads = planned(heads, before.plan)
        else:
            for head in heads.values():
                tuple(sweep(self._store, head, instants.now_ms()))
        found = backfillable(self._store, heads, self._declared, since=since)
        looked = [(target, self._look(target)) for target in found.targets]
        gone = (
            Left(each.stage, each.columns, f"of what it had read before v{each.since} Kafka has nothing any more")
            for each, one in looked
            if one is None
        )
        return tuple(one for _, one in looked if one is not None), (*found.left, *gone)

    def _look(self, target: Target) -> Filled | None:
        """What there is in Kafka of it; None where nothing is, though there was something."""
        starts, times = {}, []
        for topic, at in target.starts.items():
            earliest = topics.offsets(self._options.kafka, self._name(topic))[0]
            ends = target.ends[topic]
            starts[topic] = tuple(min(max(pair), end) for *pair, end in zip(at, earliest, ends, strict=False))
            times += [
                time_ms
                for partition, (start, end) in enumerate(zip(starts[topic], ends, strict=True))
                if start < end and (time_ms := self._time_ms(topic, partition, start, end)) is not None
            ]
        num = sum(sum(target.ends[topic]) - sum(at) for topic, at in starts.items())
        if target.records and not num:
            return None
        whole = target.begins and starts == dict(target.starts)
        return Filled(target, starts, whole, num, min(times, default=None))

    def fill(self, planned: Filled) -> Filled:
        """Compute it, as far as an earlier call has not, and bring it in."""
        target = planned.target
        by = whoami()
        self._compute(planned)
        name, stage = target.scratch, target.stage
        source, first = (history.read(self._store, name, stage, number) for number in self._versions(target))
        if any(sum(each.lost) for each in source.inputs.values()):
            discard(self._store, name)
            raise Refused(
                f"Kafka has lost records of {', '.join(target.starts)} while they were read for {stage}",
                hint="the same command begins anew, with what there is",
            )
        declared_as = {self._name(topic): topic for topic in target.starts}
        starts = {declared_as[each.topic]: each.offsets for each in first.inputs.values()}
        whole = target.begins and starts == dict(target.starts)
        backfill = Backfill(
            version=target.since + 1,
            since=target.since,
            columns=target.ids,
            app=name,
            at=source.version,
            writer=source.writer,
            starts=starts,
            whole=whole,
        )
        self._news.doing(f"bringing {', '.join(target.columns)} into {stage}")
        with self._cache() as cache:
            done = swap(
                self._store,
                cache,
                (target.app, stage),
                backfill,
                writer=str(ULID()),
                by=by,
                now_ms=instants.now_ms,
                on_progress=lambda so_far, of: self._news.doing(
                    f"bringing {', '.join(target.columns)} into {stage}: {so_far} of {of} SSTs"
                ),
            )
        detail = f"{stage} v{done.manifest.version}: {', '.join(target.columns)}"
        record(self._store, target.app, "backfill", detail, by)
        return replace(
            planned,
            starts=starts,
            whole=whole,
            version=done.manifest.version,
            keys=sum(sst.rows for sst in source.ssts),
            ssts=done.ssts,
            bytes=done.bytes,
            needed=self._settle(done.manifest),
        )

    def _compute(self, planned: Filled) -> None:
        target = planned.target
        made = scratch_program(self._program, target, self._topics, self._left_out(target))
        info = AppInfo(
            target.scratch, instants.now_ms(), starts={self._name(topic): at for topic, at in target.starts.items()}
        )
        if not self._goes_on(made, info):
            discard(self._store, info.name)
            apps.ensure_app(self._store, info)
        what, read = f"computing {', '.join(target.columns)} of {target.stage}", 0

        def on_commit(report: BatchReport) -> None:
            nonlocal read
            read += report.rows_in
            self._news.doing(f"{what}: {read:,} of {planned.records:,} records")

        (stage,) = made.stages.values()
        # Of a topic that the stage did not read then, nothing.
        until = dict.fromkeys(stage.inputs, ()) | {self._name(topic): at for topic, at in target.ends.items()}
        options = replace(
            self._options,
            stages=(),
            until_caught_up=True,
            # Where it begins is noted; what is lost later is refused.
            accept_loss=True,
            max_unflushed=0,
            gc_every_ms=None,
            until=until,
        )
        self._news.doing(what)
        run(made, options, on_commit, news=_Quiet(self._news))
        head = history.head(self._store, info.name, target.stage)
        if head is None or any(any(map(int.__lt__, each.offsets, until[each.topic])) for each in head.inputs.values()):
            raise Refused(
                f"the backfill of {target.app} was stopped: {target.stage} has not its values yet",
                hint="the same command goes on where it stopped",
            )

    def _left_out(self, target: Target) -> Offsets:
        head = history.head(self._store, target.app, target.stage)
        migrated = version_of(self._store, head, target.since) if head is not None else None
        if migrated is None:
            raise Refused(f"v{target.since} of {target.stage}, which added the columns, was collected meanwhile")
        with self._cache() as cache:
            return left_out(self._store, cache, migrated)

    def _cache(self) -> closing[SstCache]:
        return closing(SstCache(self._options.cache_folder, self._options.cache_bytes))

    def _goes_on(self, made: App, info: AppInfo) -> bool:
        """Whether an earlier call has begun just this."""
        found = apps.find_app(self._store, info.name)
        if found is None or found.starts != info.starts:
            return False
        (stage,) = made.stages.values()
        head = history.head(self._store, info.name, stage.name)
        if head is None:
            return True
        state = stage.state.describe() if stage.state is not None else ""
        if head.table is None or head.table.state != state or _checksum(head.program) != _checksum(program_of(made)):
            return False
        earliest = {each.topic: topics.offsets(self._options.kafka, each.topic)[0] for each in head.inputs.values()}
        return all(all(map(int.__ge__, each.offsets, earliest[each.topic])) for each in head.inputs.values())

    def _versions(self, target: Target) -> tuple[int, int]:
        head = history.head(self._store, target.scratch, target.stage)
        assert head is not None  # noqa: S101  it was run
        return head.version, 1

    def _settle(self, swapped: Manifest) -> str:
        """Remove what was computed, once no batch is under way that may need it; its name, where that takes long."""
        deadline = time.monotonic() + self._settles_s
        self._news.doing("waiting for batches that were under way")
        names = [each.app for each in swapped.backfills]
        while True:
            head = history.head(self._store, swapped.app, swapped.stage, known=swapped.version) or swapped
            needed = tuple(sweep(self._store, head, instants.now_ms()))
            if not needed:
                delete_groups(self._options.kafka, tuple(group_of(name, swapped.stage) for name in names[-1:]))
                return ""
            if time.monotonic() > deadline:
                return needed[-1]
            time.sleep(_LOOK_S)

    def _name(self, topic: str) -> str:
        return self._topics.get(topic, topic)

    def _time_ms(self, topic: str, partition: int, start: int, end: int) -> int | None:
        for messages in records.read_range(
            self._options.kafka,
            self._name(topic),
            partition,
            start,
            min(start + 1, end),
            patience_s=self._options.patience_s,
        ):
            for message in messages:
                return int(message.timestamp()[1])
        return None


def _checksum(program: Program | None) -> str:
    return program.checksum if program is not None else ""


class _Quiet(News):
    """What the run of a backfill tells: what it does before its first batch, and no more."""

    def __init__(self, news: News) -> None:
        self._news = news

    def doing(self, what: str) -> None:
        if what:
            self._news.doing(what)
