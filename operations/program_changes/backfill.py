"""`slackwater migrate --backfill`: what a migration added, computed over the past beside the running app.

And how far back Kafka goes for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from ulid import ULID

from ...common import instants
from ...errors import NotFound, Refused
from ...pipeline.api.app import App
from ...pipeline.kafka.archived import archived
from ...pipeline.kafka.channels import group_of
from ...pipeline.kafka.open import open_kafka, wait_for
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.run.news import News
from ...pipeline.run.options import Options
from ...pipeline.run.program import load_app
from ...pipeline.spark.conf import on_path
from ...snapshot.change.migrate import Migrated, finish_earlier
from ...snapshot.change.migration import planned
from ...snapshot.cut import replicas
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.moments import heads_of, version_of
from ...snapshot.cut.resolve import resolve
from ...snapshot.take.audit_log import record, whoami
from ...state.fits import Declared
from ...state.topics import are_two
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.sorted_runs import deltas
from ...store.versions import apps, history
from ...store.versions.manifest import Backfill, Manifest
from .backfill_swap import swap_in, sweep
from .backfill_targets import BackfillTarget, Left, backfillable, nothing
from .backfill_windows import left_in
from .program import migrate_app, spark_of, with_spark
from .scratch import ScratchRun

_SETTLES_S = 30.0
"""How long to wait for a batch that was under way before what it may need is removed."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Filled:
    """Columns that were computed over the past, or would be."""

    target: BackfillTarget
    starts: Mapping[str, tuple[int, ...]]
    """Where it begins, by user's topic as declared: from there on the values are complete."""
    whole: bool
    """Whether nothing is missing: the stage itself began there."""
    records: int
    """How many offsets were to be read."""
    from_ms: int | None
    """The time of the earliest record, in ms since 1970; None where there is none."""
    version: int = 0
    """The stage's version that has the values; 0 for none."""
    keys: int = 0
    """For how many keys there are values, at most."""
    keys_exact: bool = True
    """False where a key is counted once for each sorted run that has it."""
    ssts: int = 0
    """Objects that were rewritten for it."""
    bytes: int = 0
    needed: str = ""
    """The app that computed it, where that stays for now: a batch under way may need it."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill did, or would do, upstream first; and before it, the migration."""

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
    """Migrate an app to the program that a file declares, as `migrate_file`, and compute what was added over the past.

    The app may run meanwhile, with that program. `since` is a ref of the app, from which on; empty for all that its
    stages have read and Kafka has. For batches under way it waits `settles_s`, before it removes what was computed.
    Raises as `StoredApp.backfill`, `runner.run` and `swap_in`; `Refused` where it was stopped: the same call goes on.
    """
    on_path(options.py_files)
    store = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    program = load_app(path, name=app, store=store)
    news = news or News()
    if not options.kafka:
        raise NotFound("Kafka", "brokers", hint="the past is read from there: add --kafka")
    wait_for(open_kafka(options.kafka), options.patience_s)
    news.doing("starting Spark")
    with spark_of("backfill", program, options):
        finished = 0 if dry_run else finish_earlier(store, program.name, now_ms=instants.now_ms())
        act = partial(migrate_app, program, store, options, renames=renames, stages=stages, news=news)
        migrated = act(dry_run=True)
        cut = resolve(store, apps.in_folder(store, since), now_ms=instants.now_ms()) if since else None
        if cut is not None and cut.app != program.name:
            raise Refused(f"{since} is a moment of {cut.app}, and {program.name} is backfilled")
        info = apps.read_app(store, program.name)
        topics = replicas.topics_of(store, info)
        at_work = _Backfills(program, with_spark(program, options, news), store, options, news, topics, settles_s)
        found, left = at_work.find(cut, migrated)
        refused = nothing(left, program.name) if not found else None
        if refused is not None and (migrated.plan.changes or not at_work.has_begun()):
            raise refused
        if not dry_run:
            migrated = replace(act(dry_run=False), finished=finished)
            found, left = at_work.find(cut)
            found = tuple(map(at_work.fill, found))
        return Backfilled(migrated, found, left)


@dataclass(frozen=True, slots=True)
class _Backfills:
    """Those of one app, which reads users' `topics` under another name, by the declared one."""

    program: App
    declared: Declared
    store: ObjectStore
    options: Options
    news: News
    topics: Mapping[str, str]
    settles_s: float

    def find(self, since: Cut | None, before: Migrated | None = None) -> tuple[tuple[Filled, ...], tuple[Left, ...]]:
        """What there is to do, and what cannot be done; `before` is a migration that is not done yet.

        Of what an earlier call left, what is needed no more is removed then.
        """
        heads = self._heads()
        if before is not None:
            heads = planned(heads, before.plan)
        else:
            for head in heads.values():
                tuple(sweep(self.store, head, instants.now_ms()))
        targets, left = backfillable(self.store, heads, self.declared, since=since)
        kafka, patience_s = open_kafka(self.options.kafka), self.options.patience_s
        kafka = archived(kafka, self.store, self.program.name)
        found = [reach(kafka, self.store, target, self.topics, patience_s=patience_s) for target in targets]
        filled = tuple(one for one in found if isinstance(one, Filled))
        return filled, (*left, *(one for one in found if isinstance(one, Left)))

    def has_begun(self) -> bool:
        """Whether an earlier call brought in columns of the newest migration: what is left is then no error."""
        heads = self._heads().values()
        newest = max(head.migration for head in heads)
        filled = (version_of(self.store, head, each.since) for head in heads for each in head.backfills)
        return any(migrated is not None and migrated.migration == newest for migrated in filled)

    def _heads(self) -> dict[str, Manifest]:
        return heads_of(self.store, self.program.name, history.list_stages(self.store, self.program.name))

    def fill(self, planned: Filled) -> Filled:
        """Compute it, as far as an earlier call has not, and bring it in."""
        target, by = planned.target, whoami()
        stage, columns = target.stage, ", ".join(target.columns)
        sent = {name: columns for stage in self.declared.stages.values() for name, columns in stage.outputs.items()}
        run = ScratchRun(self.program, self.store, self.options, self.news, self.topics, sent, target, planned.records)
        source, starts = run.compute()
        backfill = Backfill(
            version=target.since + 1,
            since=target.since,
            columns=target.ids,
            app=target.scratch,
            at=source.version,
            writer=source.writer,
            starts=dict(starts),
            whole=target.is_whole(starts),
        )
        with closing(SstCache(self.options.cache_folder, self.options.cache_bytes)) as cache:
            done = swap_in(
                self.store,
                cache,
                (target.app, stage),
                backfill,
                writer=str(ULID()),
                by=by,
                now_ms=instants.now_ms,
                on_progress=lambda n, of: self.news.doing(f"bringing {columns} into {stage}: {n} of {of} SSTs"),
            )
        version = done.manifest.version
        detail, made = f"{stage} v{version}: {columns}", {stage: (version - 1, version)}
        record(self.store, target.app, "backfill", detail, by, made)
        return replace(
            planned,
            starts=starts,
            whole=backfill.whole,
            version=done.manifest.version,
            keys=sum(sst.rows - sst.tombstones for sst in source.ssts),
            keys_exact=not deltas(source.ssts),
            ssts=done.ssts,
            bytes=done.bytes,
            needed=self._settle(done.manifest),
        )

    def _settle(self, swapped: Manifest) -> str:
        """Remove what was computed, once no batch is under way that may need it; its name, where that takes long."""
        deadline = time.monotonic() + self.settles_s
        self.news.doing("waiting for batches that were under way")
        names = [each.app for each in swapped.backfills]
        while True:
            head = history.head(self.store, swapped.app, swapped.stage, known=swapped.version) or swapped
            needed = tuple(sweep(self.store, head, instants.now_ms()))
            if not needed:
                open_kafka(self.options.kafka).delete_groups([group_of(name, swapped.stage) for name in names[-1:]])
                return ""
            if time.monotonic() > deadline:
                return needed[-1]
            time.sleep(_POLL_S)


def reach(
    kafka: Kafka, store: ObjectStore, target: BackfillTarget, called: Mapping[str, str], *, patience_s: float
) -> Filled | Left:
    """What there is in Kafka of what a backfill would read; or why that is too little.

    Users' topics that the app reads under another name are `called` that, by the declared one. Raises `NotFound`.
    """
    starts, times, wanted = {}, [], target.records
    for topic, at in target.starts.items():
        name, ends = called.get(topic, topic), target.ends[topic]
        if (channel := target.channels.get(topic)) is not None:
            name = channel.end.topic
        now = kafka.state(name)
        earliest = now.earliest
        if name not in called.values() and are_two(target.topic_ids.get(topic, ""), now.id):
            return Left(
                target.stage,
                target.columns,
                f"topic {name!r} was deleted and made again since it was read: what it had read is not there any more",
                "where you have those records elsewhere, a stage of another name can begin with them: slackwater init",
            )
        if channel is not None:
            left = left_in(store, target.app, topic, channel, earliest)
            target = replace(target, channels={**target.channels, topic: left})
            at = left.start.offsets
        starts[topic] = tuple(min(max(pair), end) for *pair, end in zip(at, earliest, ends, strict=False))
        for partition, (start, end) in enumerate(zip(starts[topic], ends, strict=True)):
            if start < end:
                found = chain.from_iterable(kafka.read(name, partition, start, start + 1, patience_s=patience_s))
                times += [int(message.timestamp()[1]) for message in islice(found, 1)]
    there = target.records_from(starts)
    if wanted and not there:
        return Left(
            target.stage,
            target.columns,
            f"of what it had read before v{target.since} Kafka has nothing any more",
            "where you have those records elsewhere, a stage of another name can begin with them: slackwater init",
        )
    return Filled(target, starts, target.is_whole(starts), there, min(times, default=None))
