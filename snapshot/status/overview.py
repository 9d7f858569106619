"""Overview of an app from the newest versions of its stages: lags, tables, input archives, replicas.

Makes a few requests per stage, and reads no rows, so the number of keys is an upper bound. The lag of a stage behind
its inputs is computed from manifests and the end offsets of topics.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from ...common import instants
from ...errors import Corruption, Refused, SlackwaterError
from ...state.records import count_unread, is_other_topic, ranges, read_spans
from ...store.archive import index
from ...store.archive.extents import count_offsets
from ...store.archive.index import ArchiveIndex
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.sst.sorted_runs import max_l0_files, overlapping_older
from ...store.versions import apps, forgotten, history, keys, published
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import AppInfo, FollowedQuery, Input, Manifest, Origin, Table
from ...store.versions.published import PublishedPosition
from ...store.versions.side_tables import rejected_counts
from ..cut import replicas
from ..cut.graph import Cut, topological_order
from ..cut.lineage import rows_read
from ..cut.replicas import Replica, ReplicaLag, lags_of
from ..cut.stored import open_requests
from ..under_way import runners
from .cost import recent_usage

EndsOf = Callable[[Input], tuple[int, ...] | None]
"""Function that returns the end offsets of an input's topic; None if unknown, or for a recreated topic."""


@dataclass(frozen=True, slots=True)
class InputLag:
    """Lag of one input of a stage. A field of None is unknown."""

    name: str
    topic: str
    upstream: str
    offsets: tuple[int, ...]
    """Next offset to read, by partition."""
    ends: tuple[int, ...] | None
    lag: int | None
    """Unread offsets, including transaction markers in users' topics and snapshot markers in repartition topics."""
    records: int | None
    """Number of unread rows of a repartition topic; None if the reader did not start at the topic's beginning.

    For a user's topic, equals `lag`, because the offsets without a record are unknown before they are read.
    """
    versions: int | None
    """Number of unread versions of a repartition topic's sender, including empty versions; 0 if all are read."""


@dataclass(frozen=True, slots=True)
class SinkLag:
    """Lag of one sink of a stage."""

    name: str
    topic: str
    place: int | None
    """Version up to which all rows are published; None before the publisher's first start."""
    rows: int
    versions: int
    """Number of versions after the published version; 0 if these versions have no rows for the sink."""
    sent: int = 0


@dataclass(frozen=True, slots=True)
class StageLag:
    """Lag of one stage, with the state of its runner."""

    app: str
    stage: str
    inputs: tuple[InputLag, ...]
    running: bool | None
    """True if a runner with a recent heartbeat runs the stage; None if unknown."""
    sinks: tuple[SinkLag, ...] = ()

    @property
    def unit(self) -> str:
        """Unit of `records`: row if all inputs are repartition topics, else offset."""
        return "row" if self.inputs and all(input_lag.upstream for input_lag in self.inputs) else "offset"

    @property
    def records(self) -> int | None:
        counts = [input_lag.records for input_lag in self.inputs]
        return None if None in counts else sum(count or 0 for count in counts)


def sink_lags(head: Manifest, published_positions: Mapping[str, PublishedPosition | None]) -> tuple[SinkLag, ...]:
    """Return the lag of each sink of the version `head`.

    `published_positions` has the progress of each publisher; None for a publisher that has never started.
    """
    lags = []
    for name, sink in head.sinks.items():
        if name not in published_positions:
            continue  # it has no publisher
        place = published_positions[name]
        rows = published.unpublished_rows(sink, place)
        version = place.version if place is not None else None
        versions = head.version - (version or sink.since) if rows else 0
        lags.append(SinkLag(name, sink.topic, version, rows, versions, sink.sent))
    return tuple(lags)


def input_lag(name: str, head: Manifest, heads: Mapping[str, Manifest], ends_of: EndsOf) -> InputLag:
    """Return the lag of one input of the version `head`. `heads` are the newest versions of its possible senders.

    The lag of a retired stage is unknown, since it no longer reads.
    """
    source = head.inputs[name]
    lag = partial(InputLag, name, source.topic, source.upstream, source.offsets)
    sender = heads.get(source.upstream)
    output = sender.outputs.get(name) if sender is not None else None
    ends = output.ends if output is not None else None if source.upstream or head.retired else ends_of(source)
    if head.retired or ends is None:
        return lag(None, None, None, None)
    messages = sum(unread_range.last - unread_range.first for unread_range in ranges(source.offsets, ends))
    if sender is None or output is None:
        return lag(ends, messages, messages, None)
    if messages == 0:
        # The unread versions sent nothing here: they are claims, compactions, or batches whose rows went to other
        # channels.
        return lag(ends, 0, 0, 0)
    rows = count_unread(output, source)
    return lag(ends, messages, None if rows is None else max(0, rows), max(0, sender.version - source.version))


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """Status of the archive of a topic."""

    topic: str
    life: int
    """Incarnation of the topic: 2 or more if the topic was deleted and recreated."""
    records: int
    objects: int
    bytes: int
    since_ms: int
    """Time of the earliest record, in ms since 1970; 0 without records."""
    behind: int
    """Lag of the archive: number of offsets that the app has already read and the archive does not have yet."""
    gaps: tuple[str, ...]
    """Ranges of offsets that the archive lacks, in the format `[0]@10..20`. Reading such a range raises an error."""
    holds: tuple[str, ...]
    """Ranges of offsets that the archive has, in the format `[0]@10..20`."""


def archive_status(archive: ArchiveIndex, heads: Iterable[Manifest] = ()) -> ArchiveStatus:
    """Return the status of an archive. `heads` are the newest versions of the stages that read its topic."""
    inputs = (at for head in heads for at in head.inputs.values() if at.topic == archive.topic)
    same_topic = (at for at in inputs if not is_other_topic(archive.topic_id, at.topic_id))
    missing = archive.unarchived(read for at in same_topic for read in read_spans(None, at, with_former_topics=False))
    last = {extent.partition: extent.end for extent in archive.covered}
    behind = count_offsets(extent for extent in missing if extent.first >= last.get(extent.partition, 0))
    return ArchiveStatus(
        archive.topic,
        archive.life,
        archive.rows,
        len(archive.objects),
        archive.bytes,
        min((archived.time_min_ms for archived in archive.objects), default=0),
        behind,
        tuple(map(str, archive.gaps)),
        tuple(map(str, archive.covered)),
    )


def archive_statuses(
    store: ObjectStore, app: str, heads: Iterable[Manifest], damaged: dict[str, Corruption] | None = None
) -> tuple[ArchiveStatus, ...]:
    """Return the status of each archive of an app. `heads` are the newest versions of the app's stages.

    Makes one list request, then for each archive one list request and one read. Raises `Corruption`, unless `damaged`
    is given to collect such errors.
    """
    manifests = tuple(heads)
    newest = index.newest_incarnations(store, app)
    archives = index.iter_archives(store, app, damaged)
    return tuple(
        archive_status(archive, manifests if archive.life == newest[archive.topic] else ()) for archive in archives
    )


_RECENT_VERSIONS = 100
_APPS_AT_ONCE = 32
_NO_HINTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TableFigures:
    """Figures of a stage's table, named as in RocksDB. A ratio is None if its divisor is 0."""

    versions: int
    """Number of the newest versions from which the ratios and times are computed."""
    l0_files: int
    """Largest number of level 0 SSTs in one state partition."""
    debt_bytes: int
    read_amplification: float | None
    """Number of SSTs searched for each looked-up key, without SSTs that a filter excluded."""
    write_amplification: float | None
    """Bytes written by batches and compactions per byte written by batches."""
    filter_hits: float | None
    """Share of SST look-ups that a filter answered, 0 to 1."""
    cache_hits: float | None
    """Share of SST reads that the local cache answered, 0 to 1."""
    commit_ms: float | None


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage at its newest version."""

    stage: str
    version: int
    epoch: int
    kind: VersionKind
    by: str
    runner: str | None
    """Runner of the stage, as host:pid; empty if there is no runner, None if unknown."""
    time_ms: int
    rows: int | None
    keys: int | None
    """Upper bound of the keys in the table; None without a table."""
    keys_exact: bool
    """True if `keys` is exact. If rows expire or runs overlap, a key may be counted once per run."""
    ssts: int
    bytes: int
    inputs: tuple[InputLag, ...]
    retired: bool
    figures: TableFigures | None
    sinks: tuple[SinkLag, ...] = ()
    """Lags of the sinks, based on the progress that publishers save in the store every few seconds."""
    rejected: int = 0
    rejected_waiting: int = 0
    since: dict[str, int] = field(default_factory=dict)
    """First version that has the column, for each column that a migration added to the table, by name."""
    called: str = ""
    watermark_ms: int | None = None
    ahead: int = 0
    """Number of rows whose event time was too far ahead of the clock, since the stage began."""
    attached: FollowedQuery | None = None
    batches_behind: int | None = None
    """Number of the attached query's batches not yet imported at the last heartbeat; None if unknown."""
    late: int = 0
    waits_for: str = ""
    """Reason for waiting at the runner's last heartbeat; empty if not waiting, or if unknown."""


@dataclass(frozen=True, slots=True)
class AppOverview:
    """State of one app: its stages, replicas and archives."""

    app: str
    created_ms: int
    origin: Origin | None
    stages: tuple[StageOverview, ...]
    requested: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Names that the app got by promotions, in the form `NAME~1` if another app has the name now."""
    archives: tuple[ArchiveStatus, ...] = ()
    damaged: tuple[str, ...] = ()
    """One sentence for each part of the app that is missing here because it cannot be read."""
    replica: Replica | None = None
    complete_ms: int = 0
    """Time up to which a replica is complete; 0 if it never was, and for an app that is no replica."""
    replicas: tuple[ReplicaLag, ...] = ()
    """Lags of the app's replicas under other roots, by the progress recorded in the app's folder."""


def overview(
    store: ObjectStore, app: str, ends_of: EndsOf, *, in_detail: bool = False, hints: Mapping[str, int] = _NO_HINTS
) -> AppOverview:
    """Return the overview of an app. With `in_detail`, includes figures of tables, for one more request per table.

    `hints` has versions of stages that the caller has seen within the last half hour. With hints, stages with many
    versions take fewer requests. Raises `NotFound` (no such app).
    """
    return _read_overview(store, apps.read_app(store, app), in_detail=in_detail, hints=hints).with_lags(ends_of)


@dataclass(frozen=True, slots=True)
class _StoredOverview:
    """Overview that is read from the store alone, without the lags of inputs."""

    overview: AppOverview
    heads: Mapping[str, Manifest]

    def with_lags(self, ends_of: EndsOf) -> AppOverview:
        stages = (
            replace(stage, inputs=_input_lags(self.heads[stage.stage], self.heads, ends_of))
            for stage in self.overview.stages
        )
        return replace(self.overview, stages=tuple(stages))


def _read_overview(
    store: ObjectStore, info: AppInfo, *, in_detail: bool = False, hints: Mapping[str, int] = _NO_HINTS
) -> _StoredOverview:
    """Read an app's overview.

    Costs a few requests for each stage, and one or two for each runner, sink, replica and archive.
    """
    app, damaged = info.name, list[str]()
    folders = apps.list_app_folders(store, app)
    if keys.forgotten(app) not in folders:
        forgotten.cache_missing_index(store, app)
    heads = _read_heads(store, app, hints, damaged)
    beats: tuple[runners.Heartbeat, ...] | None = None
    with _collect_errors(damaged, f"{app}: running stages are unknown"):
        beats = runners.live_heartbeats(store, app, instants.now_ms()) if keys.runners(app) in folders else ()
    sinks: dict[str, tuple[SinkLag, ...]] = dict.fromkeys(heads, ())
    for stage, head in heads.items():
        with _collect_errors(damaged, f"{app}/{stage}: progress of its sinks is unknown"):
            sinks[stage] = sink_lags(head, published.read_positions(store, head))

    stages = tuple(
        _stage_overview(heads[stage], (), beats, sinks[stage], store if in_detail else None)
        for stage in topological_order(heads)
    )
    requested = tuple(request.name for request in open_requests(store, app)) if keys.requests(app) in folders else ()
    replica, complete_ms, lags = None, 0, tuple[ReplicaLag, ...]()
    with _collect_errors(damaged, f"{app}: progress of its replicas is unknown"):
        replica = replicas.find_replica_state(store, app)
        if replica is not None and replica.state == "copy":
            cut = replicas.REPLICA_CUTS.newest(store, app)
            complete_ms = cut.seen_ms if cut is not None else 0
        elif keys.replicas(app) in folders:
            lags = lags_of(store, app, {stage: head.version for stage, head in heads.items()})
    archives: tuple[ArchiveStatus, ...] = ()
    if keys.archives(app) in folders:
        with _collect_errors(damaged, f"{app}: state of its input archive is unknown"):
            archives = archive_statuses(store, app, heads.values())
    fields = (app, info.created_ms, info.origin, stages, requested, _promoted_names(store, app, heads), archives)
    return _StoredOverview(AppOverview(*fields, tuple(damaged), replica, complete_ms, lags), heads)


def _read_heads(store: ObjectStore, app: str, hints: Mapping[str, int], damaged: list[str]) -> dict[str, Manifest]:
    heads: dict[str, Manifest] = {}
    for stage in history.list_stages(store, app):
        with _collect_errors(damaged, f"{app}/{stage}"):
            head = history.head(store, app, stage, hint=hints.get(stage, 0))
            heads |= {stage: head} if head is not None else {}
    return heads


def _promoted_names(store: ObjectStore, app: str, heads: Mapping[str, Manifest]) -> tuple[str, ...]:
    names = {head.promotion.name for head in heads.values() if head.promotion is not None}
    owners_by_name = {name: apps.owner_folders(store, name) for name in sorted(names)}
    return tuple(
        f"{name}~{folders.index(app)}" if folders.index(app) else name
        for name, folders in owners_by_name.items()
        if app in folders
    )


def stages_at(cut: Cut) -> tuple[StageOverview, ...]:
    """Return the overviews of a cut's stages. Reads only manifests, so end offsets of users' topics are missing."""
    stages = cut.stages
    # The progress of publishers is not versioned, so sinks show only the rows sent to them.
    sinks = {
        stage: tuple(SinkLag(name, sink.topic, None, 0, 0, sink.sent) for name, sink in m.sinks.items())
        for stage, m in stages.items()
    }
    return tuple(
        _stage_overview(stages[stage], _input_lags(stages[stage], stages, lambda _topic: None), None, sinks[stage])
        for stage in topological_order(stages)
    )


def _input_lags(head: Manifest, heads: Mapping[str, Manifest], ends_of: EndsOf) -> tuple[InputLag, ...]:
    return tuple(input_lag(name, head, heads, ends_of) for name in head.inputs)


def _stage_overview(
    head: Manifest,
    inputs: tuple[InputLag, ...],
    beats: Sequence[runners.Heartbeat] | None,
    sinks: tuple[SinkLag, ...],
    store: ObjectStore | None = None,
) -> StageOverview:
    rejects, times = rejected_counts(head), head.event_time
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
        keys_exact=not overlapping_older(head.ssts) and not any(sst.expiring for sst in head.ssts),
        ssts=len(head.ssts),
        bytes=sum(sst.bytes for sst in head.ssts),
        inputs=inputs,
        retired=head.retired,
        called=head.called,
        figures=_table_figures(store, head, head.table) if store is not None and head.table is not None else None,
        sinks=sinks,
        rejected=rejects.total,
        rejected_waiting=rejects.waiting,
        since=head.table.added_columns if head.table is not None else {},
        watermark_ms=head.watermark_ms,
        ahead=times.ahead_total if times is not None else 0,
        attached=head.attached,
        batches_behind=runners.batch_lag(head, beats or ()),
        late=times.late_total if times is not None else 0,
        waits_for=runners.wait_reason(head, beats or ()),
    )


@contextmanager
def _collect_errors(
    damaged: list[str], subject: str, kinds: tuple[type[SlackwaterError], ...] = (Corruption,)
) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        damaged.append(f"{subject}: {error.message} ({error.hint})")


def overviews(store: ObjectStore, app: str | None, ends_of: EndsOf) -> tuple[tuple[AppOverview, ...], tuple[str, ...]]:
    """Return two values: the overviews of all apps, or of `app` in detail; and a sentence for each unreadable part.

    Raises `NotFound` (no such app), `Corruption` (the identity of `app` cannot be read) and `Refused` (`app` is being
    removed).
    """
    if app is not None:
        app_overview = overview(store, app, ends_of, in_detail=True)
        return (app_overview,), app_overview.damaged
    apps_found: list[AppOverview] = []
    damaged: list[str] = []
    # Kafka is asked for one topic after the other here, while other threads read the store.
    for possible, errors in map_concurrently(
        partial(_find_overview, store), apps.list_possible_apps(store), _APPS_AT_ONCE
    ):
        if possible is not None:
            apps_found.append(possible.with_lags(ends_of))
            damaged += apps_found[-1].damaged
        damaged += errors
    return tuple(apps_found), tuple(damaged)


def _find_overview(store: ObjectStore, name: str) -> tuple[_StoredOverview | None, list[str]]:
    """Return the overview of a folder's app, if the folder has one, and a sentence if it cannot be read."""
    errors: list[str] = []
    with _collect_errors(errors, name, (Corruption, Refused)):  # `Refused`: being removed
        if (info := apps.find_app(store, name)) is not None:
            return _read_overview(store, info), errors
    return None, errors


def _table_figures(store: ObjectStore, head: Manifest, table: Table) -> TableFigures:
    # Imports numpy and Arrow, which the overview without details does not need.
    from ...store.compaction.picker import pick_for_manifest

    versions, usage = recent_usage(store, head, _RECENT_VERSIONS)
    return TableFigures(
        versions=versions,
        l0_files=max_l0_files(head.ssts, table.ranges),
        debt_bytes=sum(merge.input_bytes for merge in pick_for_manifest(head)),
        read_amplification=_ratio(usage.searched - usage.filtered, usage.keys),
        write_amplification=_ratio(usage.flushed_bytes + usage.compacted_bytes, usage.flushed_bytes),
        filter_hits=_ratio(usage.filtered, usage.searched),
        cache_hits=_ratio(usage.cache_hits, usage.cache_hits + usage.cache_misses),
        commit_ms=_ratio(usage.commit_ms, usage.commits),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
