"""`slackwater migrate --backfill`: what a migration added, computed over the past beside the running app."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from ulid import ULID

from ... import instants
from ...errors import NotFound, Refused
from ...keep.backfill.swap import Swap, sweep
from ...keep.backfill.targets import Left, backfillable, nothing
from ...keep.migrate.migrate import Migrated, finish_earlier
from ...keep.migrate.migration import planned
from ...moments.cut.graph import Cut
from ...moments.cut.moments import heads_of, version_of
from ...moments.cut.resolve import resolve
from ...moments.take.audit_log import record, whoami
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.sorted_runs import deltas
from ...store.versions import apps, history
from ...store.versions.manifest import Backfill, Manifest
from ..api.app import App
from ..kafka.channels import group_of
from ..kafka.open import open_kafka, wait_for
from ..run.news import News
from ..run.options import Options
from ..run.program import load_app
from ..spark.session import spark_session
from ..spark.shipping import on_path
from .backfilled import Backfilled, Filled, reach
from .program import declared, migrate_app, with_spark
from .scratch_run import ScratchRun

_SETTLES_S = 30.0
"""How long to wait for a batch that was under way before what it may need is removed."""
_LOOK_S = 0.5


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
    on_path(options.py_files)
    store = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    program = load_app(path, name=app)
    news = news or News()
    if not options.kafka:
        raise NotFound("Kafka", "brokers", hint="the past is read from there: add --kafka")
    wait_for(open_kafka(options.kafka), options.patience_s)
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
        refused = nothing(left, program.name) if not found else None
        if refused is not None and (migrated.plan.changes or not at_work.has_begun()):
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
        heads = self._heads()
        if before is not None:
            heads = planned(heads, before.plan)
        else:
            for head in heads.values():
                tuple(sweep(self._store, head, instants.now_ms()))
        found = backfillable(self._store, heads, self._declared, since=since)
        kafka, patience_s = open_kafka(self._options.kafka), self._options.patience_s
        looked = [reach(kafka, self._store, target, self._topics, patience_s=patience_s) for target in found.targets]
        return (
            tuple(one for one in looked if isinstance(one, Filled)),
            (*found.left, *(one for one in looked if isinstance(one, Left))),
        )

    def has_begun(self) -> bool:
        """Whether an earlier call brought in columns of the newest migration: what is left is then no error."""
        heads = self._heads().values()
        newest = max(head.migration for head in heads)
        filled = (version_of(self._store, head, each.since) for head in heads for each in head.backfills)
        return any(migrated is not None and migrated.migration == newest for migrated in filled)

    def _heads(self) -> dict[str, Manifest]:
        return heads_of(self._store, self._program.name, history.list_stages(self._store, self._program.name))

    def fill(self, planned: Filled) -> Filled:
        """Compute it, as far as an earlier call has not, and bring it in."""
        target, by = planned.target, whoami()
        stage, columns = target.stage, ", ".join(target.columns)
        what = f"bringing {columns} into {stage}"
        sent = {name: columns for stage in self._declared.stages.values() for name, columns in stage.outputs.items()}
        runs = ScratchRun(self._program, self._store, self._options, self._news, self._topics, sent)
        filled, backfill = _computed(planned, runs)
        with closing(SstCache(self._options.cache_folder, self._options.cache_bytes)) as cache:
            swapping = Swap(
                self._store,
                cache,
                (target.app, stage),
                writer=str(ULID()),
                by=by,
                now_ms=instants.now_ms,
                on_progress=lambda so_far, of: self._news.doing(f"{what}: {so_far} of {of} SSTs"),
            )
            done = swapping.bring_in(backfill)
        record(self._store, target.app, "backfill", f"{stage} v{done.manifest.version}: {columns}", by)
        return replace(
            filled,
            version=done.manifest.version,
            ssts=done.ssts,
            bytes=done.bytes,
            needed=self._settle(done.manifest),
        )

    def _settle(self, swapped: Manifest) -> str:
        """Remove what was computed, once no batch is under way that may need it; its name, where that takes long."""
        deadline = time.monotonic() + self._settles_s
        self._news.doing("waiting for batches that were under way")
        names = [each.app for each in swapped.backfills]
        while True:
            head = history.head(self._store, swapped.app, swapped.stage, known=swapped.version) or swapped
            needed = tuple(sweep(self._store, head, instants.now_ms()))
            if not needed:
                open_kafka(self._options.kafka).delete_groups([group_of(name, swapped.stage) for name in names[-1:]])
                return ""
            if time.monotonic() > deadline:
                return needed[-1]
            time.sleep(_LOOK_S)


def _computed(planned: Filled, runs: ScratchRun) -> tuple[Filled, Backfill]:
    """Compute what is planned; that, with where it began and what came of it, and as manifests tell of it."""
    target = planned.target
    source, starts = runs.compute(planned)
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
    keys, exact = sum(sst.rows - sst.tombstones for sst in source.ssts), not deltas(source.ssts)
    return replace(planned, starts=starts, whole=backfill.whole, keys=keys, keys_exact=exact), backfill
