"""Overview of an app from the newest versions of its stages alone, and its cost.

A few requests per stage; no state is read. The number of keys is therefore an upper bound.

The cost is requests and bytes per hour, stored bytes, and the monthly price in S3. Each manifest has running totals, so
the usage over a period is the difference of two manifests, found by a binary search over version numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import astuple

from ...common import instants
from ...common.durations import HOUR_MS
from ...errors import Corruption, Refused, SlackwaterError
from ...store.objects.counting import Prices, Stats, monthly_cost
from ...store.objects.protocol import ObjectStore
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
"""Number of versions that the figures of a table cover."""


@dataclass(frozen=True, slots=True)
class TableFigures:
    """Figures of a stage's table, in the terms of RocksDB. A ratio is None if its divisor is 0."""

    versions: int
    """Number of newest versions that ratios and times cover."""
    l0_files: int
    """SSTs of level 0 in the state partition with most of them."""
    debt_bytes: int
    """Bytes that compaction must merge now."""
    read_amplification: float | None
    """SSTs searched per key looked up, without those that a filter excluded."""
    write_amplification: float | None
    """Bytes written by batches and compactions per byte written by batches."""
    filter_hits: float | None
    """Share of look-ups in an SST that a filter answered, 0 to 1."""
    cache_hits: float | None
    """Share of the SSTs read that were in the local cache, 0 to 1."""
    commit_ms: float | None
    """Average duration of the put of a manifest."""


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage at its newest version."""

    stage: str
    version: int
    epoch: int
    kind: VersionKind
    by: str
    runner: str | None
    """Runner of the stage, as host:pid; empty for none, None if unknown."""
    time_ms: int
    rows: int | None
    """Rows that the newest version read."""
    keys: int | None
    """Upper bound of the keys in the table; None without a table."""
    keys_exact: bool
    """False if rows expire or runs overlap: `keys` then counts a key once per run that has it."""
    ssts: int
    bytes: int
    inputs: tuple[InputLag, ...]
    retired: bool
    """True if the stage is no longer part of the app; it then has no lag."""
    figures: TableFigures | None
    """Figures of the table; None without details, or without a table."""
    sinks: tuple[SinkLag, ...] = ()
    """Lag of the sinks by the store; publishers save their progress every few seconds."""
    rejected: int = 0
    """Number of records rejected since the stage began."""
    rejected_waiting: int = 0
    """Number of rejected records that were not retried."""
    since: dict[str, int] = field(default_factory=dict)
    """Columns that migrations added to the table, and the first version that has each."""
    called: str = ""
    """New name of a stage that was retired by a rename."""
    watermark_ms: int | None = None
    """Watermark of the stage; None if it has none."""
    ahead: int = 0
    """Number of rows since the stage began whose event time was too far ahead of the clock."""
    attached: Followed | None = None
    """Progress of an attached Spark query."""
    batches_behind: int | None = None
    """Batches of the attached query that are not imported yet, by the last heartbeat; None if unknown."""
    late: int = 0
    """Number of rows since the stage began that were dropped as late."""
    waits_for: str = ""
    """Reason why the stage was waiting at its runner's last heartbeat; empty if it was working, or unknown."""


@dataclass(frozen=True, slots=True)
class AppOverview:
    """State of one app: its stages, replicas and archives."""

    app: str
    created_ms: int
    origin: Origin | None
    stages: tuple[StageOverview, ...]
    """Stages, upstream first."""
    requested: tuple[str, ...]
    """Requested snapshots that are not complete yet."""
    names: tuple[str, ...] = ()
    """Names given by promotions: the name that the app took over, or `NAME~1` if another app took it over."""
    archives: tuple[ArchiveStatus, ...] = ()
    """Archives of the topics that the app reads."""
    damaged: tuple[str, ...] = ()
    """A sentence for each part that is left out because it cannot be read."""
    replica: Replica | None = None
    """Replica note in the app's folder; None if the app was never copied or recovered here."""
    complete_ms: int = 0
    """For a replica, the time up to which it is complete; 0 for never, and for other apps."""
    replicas: tuple[ReplicaLag, ...] = ()
    """Replicas of the app under other roots, by the progress they have saved here."""


def overview(store: ObjectStore, app: str, ends_of: EndsOf, *, in_detail: bool = False) -> AppOverview:
    """Return the overview of `app`. With `in_detail` also figures of its tables: one more request per table.

    Raises `NotFound` (no such app).
    """
    info = apps.read_app(store, app)
    heads: dict[str, Manifest] = {}
    damaged: list[str] = []
    for stage in history.list_stages(store, app):
        with _noted(damaged, f"{app}/{stage}"):
            heads |= newest(store, app, (stage,))
    beats: tuple[runners.Beat, ...] | None = None
    with _noted(damaged, f"{app}: running stages are unknown"):
        beats = runners.beats(store, app, instants.now_ms())
    sinks: dict[str, tuple[SinkLag, ...]] = dict.fromkeys(heads, ())
    for stage, head in heads.items():
        with _noted(damaged, f"{app}/{stage}: progress of its sinks is unknown"):
            sinks[stage] = sink_lags(head, published.places(store, head))

    stages = tuple(
        _stage_overview(heads[stage], heads, ends_of, beats, sinks[stage], store if in_detail else None)
        for stage in order(heads)
    )
    requested = tuple(request.name for request in open_requests(store, app))
    promoted_names = {head.promotion.name for head in heads.values() if head.promotion is not None}
    owners_by_name = {name: apps.promoted(store, name) for name in sorted(promoted_names)}
    names = tuple(
        f"{name}~{folders.index(app)}" if folders.index(app) else name
        for name, folders in owners_by_name.items()
        if app in folders
    )
    replica, complete_ms, lags = None, 0, tuple[ReplicaLag, ...]()
    with _noted(damaged, f"{app}: progress of its replicas is unknown"):
        replica = replicas.find(store, app)
        if replica is not None and replica.state == "copy":
            cut = newest_cut(store, app)
            complete_ms = cut.seen_ms if cut is not None else 0
        else:
            lags = lags_of(store, app, {stage: head.version for stage, head in heads.items()})
    archives: tuple[ArchiveStatus, ...] = ()
    with _noted(damaged, f"{app}: state of its input archive is unknown"):
        archives = archives_of(store, app, heads.values())
    fields = (app, info.created_ms, info.origin, stages, requested, names, archives, tuple(damaged))
    return AppOverview(*fields, replica, complete_ms, lags)


def stages_at(cut: Cut) -> tuple[StageOverview, ...]:
    """Return the stages at a moment, by its manifests. End offsets of users' topics are unknown for the past."""
    stages = cut.stages
    # The progress of publishers is not versioned, so sinks show only the rows sent to them.
    sinks = {
        stage: tuple(SinkLag(name, sink.topic, None, 0, 0, sink.sent) for name, sink in m.sinks.items())
        for stage, m in stages.items()
    }
    return tuple(
        _stage_overview(stages[stage], stages, lambda _topic: None, None, sinks[stage]) for stage in order(stages)
    )


def _stage_overview(
    head: Manifest,
    heads: Mapping[str, Manifest],
    ends_of: EndsOf,
    beats: Sequence[runners.Beat] | None,
    sinks: tuple[SinkLag, ...],
    store: ObjectStore | None = None,
) -> StageOverview:
    """Return the overview of one stage at a version. With a store, in detail."""
    rejects, times = rejected_of(head), head.event_time
    return StageOverview(
        stage=head.stage,
        version=head.version,
        epoch=head.epoch,
        kind=head.kind,
        by=head.by,
        runner=None if beats is None else runners.runner_of(head, beats),
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
        batches_behind=runners.batches_behind(head, beats or ()),
        late=times.late_total if times is not None else 0,
        waits_for=runners.waits_for(head, beats or ()),
    )


@contextmanager
def _noted(
    damaged: list[str], subject: str, kinds: tuple[type[SlackwaterError], ...] = (Corruption,)
) -> Iterator[None]:
    """Append a sentence about `subject` to `damaged` if the block raises one of `kinds`."""
    try:
        yield
    except kinds as error:
        damaged.append(f"{subject}: {error.message} ({error.hint})")


def overviews(store: ObjectStore, app: str | None, ends_of: EndsOf) -> tuple[tuple[AppOverview, ...], tuple[str, ...]]:
    """Return the overview of every app, or of `app` alone in detail; and a sentence per unreadable part.

    Raises `NotFound` (no such app), `Corruption` (the identity of `app` cannot be read) and `Refused` (`app` is being
    removed).
    """
    if app is not None:
        app_overview = overview(store, app, ends_of, in_detail=True)
        return (app_overview,), app_overview.damaged
    apps_found: list[AppOverview] = []
    damaged: list[str] = []
    for name in apps.list_apps(store):
        with _noted(damaged, name, (Corruption, Refused)):  # `Refused`: being removed
            apps_found.append(overview(store, name, ends_of))
            damaged += apps_found[-1].damaged
    return tuple(apps_found), tuple(damaged)


def _figures(store: ObjectStore, head: Manifest, table: Table) -> TableFigures:
    # Imports numpy and Arrow, which the overview without details does not need.
    from ...store.compaction.picker import pick_for

    versions, usage = recent(store, head, _RECENT)
    return TableFigures(
        versions=versions,
        l0_files=l0_files(head.ssts, table.partitions),
        debt_bytes=sum(merge.input_bytes for merge in pick_for(head)),
        read_amplification=_ratio(usage.searched - usage.filtered, usage.keys),
        write_amplification=_ratio(usage.flushed_bytes + usage.compacted_bytes, usage.flushed_bytes),
        filter_hits=_ratio(usage.filtered, usage.searched),
        cache_hits=_ratio(usage.cache_hits, usage.cache_hits + usage.cache_misses),
        commit_ms=_ratio(usage.commit_ms, usage.commits),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class StageUsage:
    """Usage of one stage, and its stored bytes. SSTs of the app that this one is a clone of are not counted."""

    head: Manifest
    versions: int
    """Number of versions in the period; 0 if none was committed."""
    taken: Stats
    """Requests, bytes and time of these versions."""
    table_bytes: int
    """Size of the SSTs of the newest version."""
    sst_bytes: int
    """Size of all SSTs of the gapless history: those of its first version, and every one written since."""
    stored_bytes: int
    """Size of all stored objects: `sst_bytes`, plus manifests and everything else written since, including orphans."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost of one stage, or the total. Requests and bytes are per hour of running."""

    stage: str
    versions: int
    """Number of newest versions that are counted."""
    counted_ms: int
    """Time that these versions cover; 0 if none was committed lately, and then all rates are 0."""
    gets: int
    puts: int
    lists: int
    deletes: int
    bytes_read: int
    bytes_written: int
    table_bytes: int
    """Size of the SSTs of the newest version."""
    sst_bytes: int
    """Size of the SSTs of all versions of the gapless history."""
    stored_bytes: int
    """Billed bytes: SSTs, manifests and everything else written meanwhile."""
    requests_cost: float
    """Cost of the requests per month; the other costs are per month as well."""
    traffic_cost: float
    storage_cost: float
    monthly_cost: float
    """Sum of the three costs."""


@dataclass(frozen=True, slots=True)
class AppCost:
    """Cost of one app."""

    app: str
    since_ms: int
    prices: Prices
    stages: tuple[StageCost, ...]
    """Stages, upstream first."""
    total: StageCost


def cost_of(store: ObjectStore, app: str, since_ms: int, prices: Prices) -> AppCost:
    """Return the cost of an app, by the versions committed after `since_ms` and its stored bytes.

    Raises `NotFound` (no such app).
    """
    apps.read_app(store, app)
    names = history.list_stages(store, app)
    usages = {name: usage for name in names if (usage := usage_since(store, app, name, since_ms)) is not None}
    upstream_first = order({name: usage.head for name, usage in usages.items()})
    stages = tuple(_stage(name, usages[name], prices) for name in upstream_first)
    total = (sum(getattr(stage, name) for stage in stages) for name in StageCost.__slots__ if name != "stage")
    return AppCost(app, since_ms, prices, stages, StageCost("total", *total))


def _stage(name: str, usage: StageUsage, prices: Prices) -> StageCost:
    rate = hourly(usage.taken) or Stats()
    cost = monthly_cost(rate, usage.stored_bytes, prices)
    rates = (rate.gets, rate.puts, rate.lists, rate.deletes, rate.bytes_read, rate.bytes_written)
    stored = (usage.table_bytes, usage.sst_bytes, usage.stored_bytes)
    money = (cost.requests, cost.traffic, cost.storage, cost.total)
    return StageCost(name, usage.versions, usage.taken.ms, *rates, *stored, *money)


def usage_since(store: ObjectStore, app: str, stage: str, since_ms: int) -> StageUsage | None:
    """Return the usage of a stage by versions committed after `since_ms`; None if it has no version.

    A version covers the time since the previous one, so the first may begin before `since_ms`. Takes the requests of
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
    usage = now - (base.totals or Stats())
    return StageUsage(head, head.version - base.version, usage, at_head, sst_bytes, stored_bytes)


def hourly(usage: Stats) -> Stats | None:
    """Return the usage per hour of running; None if no time was counted."""
    return Stats(*(round(number * HOUR_MS / usage.ms) for number in astuple(usage))) if usage.ms else None


def recent(store: ObjectStore, head: Manifest, versions: int) -> tuple[int, Stats]:
    """Return the number of newest versions that are counted, and their usage. One request.

    That is `versions`, or the whole history if fewer are left. Raises `Corruption` (the version before these is
    unreadable) and `Unavailable`.
    """
    totals, base_version = head.totals or Stats(), head.version - versions
    base = history.find(store, head.app, head.stage, base_version) if base_version > 0 else None
    return (versions, totals - (base.totals or Stats())) if base is not None else (head.version, totals)


def _sst_bytes(manifest: Manifest) -> int:
    own = keys.ssts(manifest.app, manifest.stage)
    return sum(sst.bytes for sst in all_ssts(manifest) if not sst.root and sst.object.startswith(own))
