"""How far every stage of an app is, from the newest versions of its stages alone.

A few requests per stage, and nothing of the state: of the number of keys, manifests know how many at most.

What an app costs: requests and bytes an hour, what is stored, and what S3 would take for it in a month.

Each manifest has the sums so far, so what a stage took in some time is the difference of two; the requests to find out
do not depend on how many versions lie in between, but for a search over their numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import astuple

from ...common import instants
from ...common.durations import HOUR_MS
from ...errors import Corruption, Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Prices, Stats, monthly_cost
from ...store.sst.sorted_runs import deltas, l0_files
from ...store.versions import apps, history, keys, published
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import Followed, Manifest, Origin, Table
from ...store.versions.side_tables import all_ssts, rejected_of
from ..cut import replicas
from ..cut.graph import Cut, order
from ..cut.lineage import rows_read
from ..cut.moments import newest
from ..cut.replicas import Replica, ReplicaLag, lags_of, newest_cut
from ..cut.stored import open_requests
from ..under_way import runners
from .archives import ArchiveStatus, archives_of
from .lag import EndsOf, InputLag, SinkLag, input_lag, sink_lags

_RECENT = 100
"""Versions that figures of a table are told of."""


@dataclass(frozen=True, slots=True)
class TableFigures:
    """How a stage's table does, in RocksDB's words. A ratio is None when there was nothing to divide by."""

    versions: int
    """The newest so many versions are what ratios and times are of."""
    l0_files: int
    """SSTs of level 0 in the state partition that has most of them."""
    debt_bytes: int
    """What compaction is to merge now."""
    read_amplification: float | None
    """SSTs searched for each key that was looked up; those that a filter ruled out are not among them."""
    write_amplification: float | None
    """Bytes written by batches and compactions for each byte that batches wrote."""
    filter_hits: float | None
    """The part of the probes that a filter ruled out."""
    cache_hits: float | None
    """The part of the SSTs looked into that the machine had."""
    commit_ms: float | None
    """The put of a manifest, on average."""


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage at its newest version."""

    stage: str
    version: int
    epoch: int
    kind: VersionKind
    by: str
    runner: str | None
    """Who runs the stage now, as host:pid; empty when nobody does, None when that is not known."""
    time_ms: int
    rows: int | None
    """Rows that the newest version read."""
    keys: int | None
    """Keys in the table, at most; None without a table."""
    keys_exact: bool
    """False when rows expire, or sorted runs overlap: `keys` then counts a key once for each run that has it."""
    ssts: int
    bytes: int
    inputs: tuple[InputLag, ...]
    retired: bool
    """Whether it has no part in the app any more; then it has no lag."""
    figures: TableFigures | None
    """Only in detail, and of a stage with a table."""
    sinks: tuple[SinkLag, ...] = ()
    """As far as the store knows: publishers note where they are every few seconds."""
    rejected: int = 0
    """Records that it rejected since it began."""
    rejected_waiting: int = 0
    """Of these, those that were not retried."""
    since: dict[str, int] = field(default_factory=dict)
    """Columns that migrations added to the table, and the version that each is there since."""
    called: str = ""
    """Of one that is retired because it was renamed, what it is called since."""
    watermark_ms: int | None = None
    """Its watermark; None where it has none."""
    ahead: int = 0
    """Rows since it began whose event time was too far ahead of the clock."""
    attached: Followed | None = None
    """Of the state of a query of Spark's, how far it has come."""
    batches_behind: int | None = None
    """How many batches of that query it lacks, as whoever follows it said last; None where nobody does."""
    late: int = 0
    """Rows since it began that were left out of the table, because they came too late."""
    waits_for: str = ""
    """What it waited for when its runner gave its last sign of life; empty where it worked, or nobody knows."""


@dataclass(frozen=True, slots=True)
class AppOverview:
    """One app."""

    app: str
    created_ms: int
    origin: Origin | None
    stages: tuple[StageOverview, ...]
    """Upstream first."""
    requested: tuple[str, ...]
    """Snapshots that were asked for and are not complete yet."""
    names: tuple[str, ...] = ()
    """What it is called by promotions: the name that went over to it, or `NAME~1` where one was promoted over it."""
    archives: tuple[ArchiveStatus, ...] = ()
    """Of the topics that it reads."""
    damaged: tuple[str, ...] = ()
    """A sentence for each stage that is left out because its newest manifest cannot be read."""
    replica: Replica | None = None
    """What its folder says of itself; None of an app that was never copied or recovered here."""
    complete_ms: int = 0
    """Of a replica, when it lacked nothing; 0 for never yet, and of all others."""
    replicas: tuple[ReplicaLag, ...] = ()
    """Its replicas under other roots, as far as they have left word here."""


def overview(store: ObjectStore, app: str, ends_of: EndsOf, *, in_detail: bool = False) -> AppOverview:
    """How far `app` is; with `in_detail` also how its tables do, which takes a request more for each stage with one.

    Raises `NotFound` (there is no such app).
    """
    info = apps.read_app(store, app)
    heads: dict[str, Manifest] = {}
    damaged: list[str] = []
    for stage in history.list_stages(store, app):
        with _noted(damaged, f"{app}/{stage}"):
            heads |= newest(store, app, (stage,))
    alive: tuple[runners.Beat, ...] | None = None
    with _noted(damaged, f"{app}: which stages run is not known"):
        alive = runners.beats(store, app, instants.now_ms())
    sinks: dict[str, tuple[SinkLag, ...]] = dict.fromkeys(heads, ())
    for stage, head in heads.items():
        with _noted(damaged, f"{app}/{stage}: how far its sinks are is not known"):
            sinks[stage] = sink_lags(head, published.places(store, head))

    stages = tuple(
        _stage_overview(heads[stage], heads, ends_of, alive, sinks[stage], store if in_detail else None)
        for stage in order(heads)
    )
    requested = tuple(request.name for request in open_requests(store, app))
    called = {head.promotion.name for head in heads.values() if head.promotion is not None}
    had = {name: apps.promoted(store, name) for name in sorted(called)}
    names = tuple(
        f"{name}~{folders.index(app)}" if folders.index(app) else name
        for name, folders in had.items()
        if app in folders
    )
    replica, complete_ms, lags = None, 0, tuple[ReplicaLag, ...]()
    with _noted(damaged, f"{app}: how far its replicas are is not known"):
        replica = replicas.find(store, app)
        if replica is not None and replica.state == "copy":
            cut = newest_cut(store, app)
            complete_ms = cut.seen_ms if cut is not None else 0
        else:
            lags = lags_of(store, app, {stage: head.version for stage, head in heads.items()})
    archives: tuple[ArchiveStatus, ...] = ()
    with _noted(damaged, f"{app}: how far its input archive is is not known"):
        archives = archives_of(store, app, heads.values())
    found = (app, info.created_ms, info.origin, stages, requested, names, archives, tuple(damaged))
    return AppOverview(*found, replica, complete_ms, lags)


def stages_at(cut: Cut) -> tuple[StageOverview, ...]:
    """How far the stages were at a moment, as its manifests say: of users' topics nobody knows the ends of then."""
    stages = cut.stages
    # Where publishers were is not kept: of sinks what the stage had given them is told.
    sinks = {
        stage: tuple(SinkLag(name, one.topic, None, 0, 0, one.sent) for name, one in m.sinks.items())
        for stage, m in stages.items()
    }
    return tuple(
        _stage_overview(stages[stage], stages, lambda _topic: None, None, sinks[stage]) for stage in order(stages)
    )


def _stage_overview(
    head: Manifest,
    heads: Mapping[str, Manifest],
    ends_of: EndsOf,
    alive: Sequence[runners.Beat] | None,
    sinks: tuple[SinkLag, ...],
    store: ObjectStore | None = None,
) -> StageOverview:
    """One stage at a version, beside those of the others; with a store in detail."""
    rejects, times = rejected_of(head), head.event_time
    return StageOverview(
        stage=head.stage,
        version=head.version,
        epoch=head.epoch,
        kind=head.kind,
        by=head.by,
        runner=None if alive is None else runners.runner_of(head, alive),
        time_ms=head.time_ms,
        rows=rows_read(head),
        keys=sum(sst.rows - sst.tombstones for sst in head.ssts) if head.table else None,
        keys_exact=not deltas(head.ssts) and not any(sst.expiring for sst in head.ssts),
        ssts=len(head.ssts),
        bytes=sum(sst.bytes for sst in head.ssts),
        inputs=tuple(input_lag(name, head, heads, ends_of) for name in head.inputs),
        retired=head.retired,
        called=head.called,
        figures=_figures(store, head, head.table) if store is not None and head.table is not None else None,
        sinks=sinks,
        rejected=rejects.total,
        rejected_waiting=rejects.waiting,
        since=head.table.added if head.table is not None else {},
        watermark_ms=head.watermark_ms,
        ahead=times.ahead_total if times is not None else 0,
        attached=head.attached,
        batches_behind=runners.batches_behind(head, alive or ()),
        late=times.late_total if times is not None else 0,
        waits_for=runners.waits_for(head, alive or ()),
    )


@contextmanager
def _noted(damaged: list[str], what: str, kinds: tuple[type[SlackwaterError], ...] = (Corruption,)) -> Iterator[None]:
    """Adds a sentence about `what` where something in the block cannot be read."""
    try:
        yield
    except kinds as error:
        damaged.append(f"{what}: {error.message} ({error.hint})")


def overviews(store: ObjectStore, app: str | None, ends_of: EndsOf) -> tuple[tuple[AppOverview, ...], tuple[str, ...]]:
    """All apps of the store, or `app` alone and in detail; and a sentence for each thing that cannot be read.

    Raises `NotFound` (there is no such app), `Corruption` (what says who `app` is cannot be read), and `Refused` (`app`
    is being removed).
    """
    if app is not None:
        found = overview(store, app, ends_of, in_detail=True)
        return (found,), found.damaged
    apps_found: list[AppOverview] = []
    damaged: list[str] = []
    for name in apps.list_apps(store):
        with _noted(damaged, name, (Corruption, Refused)):  # refused: it is being removed
            apps_found.append(overview(store, name, ends_of))
            damaged += apps_found[-1].damaged
    return tuple(apps_found), tuple(damaged)


def _figures(store: ObjectStore, head: Manifest, table: Table) -> TableFigures:
    # numpy and Arrow, which a look without details does without.
    from ...store.compaction.picker import pick_for

    versions, took = recent(store, head, _RECENT)
    return TableFigures(
        versions=versions,
        l0_files=l0_files(head.ssts, table.partitions),
        debt_bytes=sum(one.input_bytes for one in pick_for(head)),
        read_amplification=_ratio(took.searched - took.filtered, took.keys),
        write_amplification=_ratio(took.flushed_bytes + took.compacted_bytes, took.flushed_bytes),
        filter_hits=_ratio(took.filtered, took.searched),
        cache_hits=_ratio(took.cache_hits, took.cache_hits + took.cache_misses),
        commit_ms=_ratio(took.commit_ms, took.commits),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What one stage took, and what it has in the store: without the SSTs of the app that this one is a clone of."""

    head: Manifest
    versions: int
    """How many versions it is the last of; 0 when none was committed in that time."""
    taken: Stats
    """What these took."""
    table_bytes: int
    """SSTs of the newest version."""
    sst_bytes: int
    """All SSTs of the versions from which on the history is whole: those of the first, and each that came after it."""
    stored_bytes: int
    """The same with manifests, and with whatever else was put since, left-overs too: `sst_bytes` at least."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage, or the sum of them. Requests and bytes are those of an hour in which it runs."""

    stage: str
    versions: int
    """The newest so many versions are counted."""
    counted_ms: int
    """The time that these cover; 0 when none was committed lately, and then the rates are 0 as well."""
    gets: int
    puts: int
    lists: int
    deletes: int
    bytes_read: int
    bytes_written: int
    table_bytes: int
    """SSTs of the newest version."""
    sst_bytes: int
    """SSTs of all versions, as far back as the history is whole."""
    stored_bytes: int
    """These, with manifests and whatever else was put meanwhile: what is paid for."""
    requests_cost: float
    """For a month; so are the others."""
    traffic_cost: float
    storage_cost: float
    monthly_cost: float
    """The sum of these."""


@dataclass(frozen=True, slots=True)
class AppCost:
    """One app."""

    app: str
    since_ms: int
    prices: Prices
    stages: tuple[StageCost, ...]
    """Upstream first."""
    total: StageCost


def cost_of(store: ObjectStore, app: str, since_ms: int, prices: Prices) -> AppCost:
    """What an app takes, as the versions committed after `since_ms` tell, and what it has stored.

    Raises `NotFound` (there is no such app).
    """
    apps.read_app(store, app)
    names = history.list_stages(store, app)
    found = {name: usage for name in names if (usage := usage_since(store, app, name, since_ms)) is not None}
    upstream_first = order({name: usage.head for name, usage in found.items()})
    stages = tuple(_stage(name, found[name], prices) for name in upstream_first)
    total = (sum(getattr(each, name) for each in stages) for name in StageCost.__slots__ if name != "stage")
    return AppCost(app, since_ms, prices, stages, StageCost("total", *total))


def _stage(name: str, usage: StageUsage, prices: Prices) -> StageCost:
    rate = hourly(usage.taken) or Stats()
    cost = monthly_cost(rate, usage.stored_bytes, prices)
    rates = (rate.gets, rate.puts, rate.lists, rate.deletes, rate.bytes_read, rate.bytes_written)
    stored = (usage.table_bytes, usage.sst_bytes, usage.stored_bytes)
    money = (cost.requests, cost.traffic, cost.storage, cost.total)
    return StageCost(name, usage.versions, usage.taken.ms, *rates, *stored, *money)


def usage_since(store: ObjectStore, app: str, stage: str, since_ms: int) -> StageUsage | None:
    """What a stage took in versions committed after `since_ms`; None when it has no version.

    A version counts the time since the one before it; so the first of them may begin earlier. Requests: those of
    `history.latest_at` and `history.first_version`, and a read.
    """
    head = history.head(store, app, stage)
    if head is None:
        return None
    number = history.first_version(store, app, stage)
    first = history.find(store, app, stage, number) or head
    base = history.latest_at(store, app, stage, since_ms) or first
    began, now = first.totals or Stats(), head.totals or Stats()
    at_first, at_head, since_first = _sst_bytes(first), _sst_bytes(head), now - began
    sst_bytes = max(at_head, at_first + since_first.flushed_bytes + since_first.compacted_bytes)
    stored_bytes = max(sst_bytes, at_first + since_first.bytes_written)
    taken = now - (base.totals or Stats())
    return StageUsage(head, head.version - base.version, taken, at_head, sst_bytes, stored_bytes)


def hourly(taken: Stats) -> Stats | None:
    """What was taken, for an hour in which the runner is on; None when no time was counted."""
    return Stats(*(round(number * HOUR_MS / taken.ms) for number in astuple(taken))) if taken.ms else None


def recent(store: ObjectStore, head: Manifest, versions: int) -> tuple[int, Stats]:
    """What the newest versions took: how many these are, and their sum. One request.

    So many as asked for; where fewer are left of the history, all that the stage ever had, and took. Raises
    `Corruption` (the version before these is not readable) and `Unavailable`.
    """
    now, before = head.totals or Stats(), head.version - versions
    base = history.find(store, head.app, head.stage, before) if before > 0 else None
    return (versions, now - (base.totals or Stats())) if base is not None else (head.version, now)


def _sst_bytes(manifest: Manifest) -> int:
    own = keys.ssts(manifest.app, manifest.stage)
    return sum(sst.bytes for sst in all_ssts(manifest) if not sst.root and sst.object.startswith(own))
