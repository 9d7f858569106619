"""`slackwater trial`: a changed program over the very input that an app has read between two moments, and what differs.

A clone at the first moment is migrated where the program asks for that, and runs the program up to the offsets of the
second one, publishing nothing. Its tables are compared with the app's own at the second moment. Where rows were on the
way then, or the app has sinks, the program of before runs over the same input in a clone of its own, and that is what
is compared with: then both have worked off all, and what sinks were given can be told row by row.

Both clones go at the end. The app is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from xxhash import xxh3_64_hexdigest

from ...moments.cut.graph import Cut
from ...moments.diff.allowed import without_all
from ...moments.diff.moments import StoredCut, TableDiff, diff, new_tables
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ..kafka.open import open_kafka
from ..migrate.program import spark_of
from ..run.news import News
from ..run.options import Options
from ..run.stopping import Stop, stop_signals
from ..spark.conf import on_path
from .clone_run import CloneRun
from .plan import Release, TrialPlan, make_plan
from .sent import SinkDiff, sink_diffs


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


def trial(release: Release, options: Options, cache: SstCache, *, by: str, news: News | None = None) -> Trial:
    """Try a release. A call that was interrupted begins anew with the same call.

    Raises:
        Usage: the second moment is not after the first, or a query of `allow` is wrong.
        NotFound: there is no such app, moment or stage, or a topic is gone.
        Refused: the program does not fit the app's history, Kafka has not the records any more, rows are on the way at
            the second moment and the program of before is not here, or the same trial is under way.
        KeyboardInterrupt: somebody asked to stop, by SIGINT or SIGTERM: nothing is compared then.
    """
    with stop_signals() as stop, stop.at_once():
        return _tried(plan_of(release, options), options, cache, by, news or News(), stop)
    raise KeyboardInterrupt


def _tried(plan: TrialPlan, options: Options, cache: SstCache, by: str, news: News, stop: Stop) -> Trial:
    release, store = plan.release, _store(options)
    number = xxh3_64_hexdigest(f"{release.code} {release.start}".encode())[:8]
    name = f"{release.app[:40]}-trial-{number}"
    act = partial(CloneRun, store, options, by, news, stop, release, plan.ends)
    with ExitStack() as stack:
        stack.enter_context(spark_of("trial", plan.new, options, master="local[*]"))
        made = act(release.keep or name, release.start, plan.start, "the changed program", plan.new_stages)
        stack.enter_context(made.going(plan.new, is_new=True))
        compared, old = plan.end, None
        if plan.old is not None:
            begin = (release.start, plan.start) if plan.sinks else (release.end, plan.end)
            old = act(f"{name}-before", *begin, "the program of before", plan.old_stages)
            stack.enter_context(old.going(plan.old))
            compared = old.newest()
        news.doing("comparing")
        newest, tried = made.newest(), made.tried
        cuts = StoredCut(store, compared), StoredCut(store, newest)
        found = diff(cache, *cuts, tables=tried, ignore_new=True)
        tables, wrong = without_all(found, release.allow)
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
