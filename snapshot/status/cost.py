"""Cost of an app: requests and bytes per hour, stored bytes, and the monthly price in S3.

Each manifest has running totals, so the usage over a period is the difference of two manifests, found by a binary
search over version numbers.
"""

from dataclasses import dataclass

from msgspec.structs import astuple

from ...common.durations import HOUR_MS
from ...store.objects.counting import Prices, Stats, monthly_cost
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts
from ..cut.graph import topological_order


@dataclass(frozen=True, slots=True)
class StageUsage:
    """Usage of one stage, and its stored bytes. For a clone, the SSTs of its source are not counted."""

    head: Manifest
    versions: int
    usage: Stats
    table_bytes: int
    sst_bytes: int
    """Size of all SSTs of the gapless history: SSTs of its first version, and all SSTs written since."""
    stored_bytes: int
    """Size of all stored objects: SSTs, and all objects written since, including manifests and orphans."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost of one stage, or of all stages. Requests and bytes are per hour of running."""

    stage: str
    versions: int
    counted_ms: int
    """Time that the counted versions cover. If 0, no version was committed lately, and all rates are 0."""
    gets: int
    puts: int
    lists: int
    deletes: int
    bytes_read: int
    bytes_written: int
    table_bytes: int
    sst_bytes: int
    stored_bytes: int
    """Bytes that S3 bills: SSTs, manifests and all other objects since the first version."""
    requests_cost: float
    """Price of the requests per month. The other costs are per month as well."""
    traffic_cost: float
    storage_cost: float
    monthly_cost: float


@dataclass(frozen=True, slots=True)
class AppCost:
    """Cost of one app."""

    app: str
    since_ms: int
    prices: Prices
    stages: tuple[StageCost, ...]
    total: StageCost


def cost_of(store: ObjectStore, app: str, since_ms: int, prices: Prices) -> AppCost:
    """Return the cost of an app: that of versions committed after `since_ms`, and of the stored bytes.

    Raises `NotFound` (no such app).
    """
    apps.read_app(store, app)
    names = history.list_stages(store, app)
    usages = {name: usage for name in names if (usage := usage_since(store, app, name, since_ms)) is not None}
    upstream_first = topological_order({name: usage.head for name, usage in usages.items()})
    stages = tuple(_stage_cost(name, usages[name], prices) for name in upstream_first)
    total = (sum(getattr(stage, name) for stage in stages) for name in StageCost.__slots__ if name != "stage")
    return AppCost(app, since_ms, prices, stages, StageCost("total", *total))


def _stage_cost(name: str, usage: StageUsage, prices: Prices) -> StageCost:
    rate = per_hour(usage.usage) or Stats()
    cost = monthly_cost(rate, usage.stored_bytes, prices)
    rates = (rate.gets, rate.puts, rate.lists, rate.deletes, rate.bytes_read, rate.bytes_written)
    stored = (usage.table_bytes, usage.sst_bytes, usage.stored_bytes)
    money = (cost.requests, cost.traffic, cost.storage, cost.total)
    return StageCost(name, usage.versions, usage.usage.ms, *rates, *stored, *money)


def usage_since(store: ObjectStore, app: str, stage: str, since_ms: int) -> StageUsage | None:
    """Return the usage of a stage by versions committed after `since_ms`; None if the stage has no version.

    A version's usage covers the time since the previous version, so it may begin before `since_ms`. Takes the
    requests of `history.latest_at` and `history.first_version`, and a read.
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


def per_hour(usage: Stats) -> Stats | None:
    """Return the usage per hour of running; None if the usage covers no time."""
    return Stats(*(round(number * HOUR_MS / usage.ms) for number in astuple(usage))) if usage.ms else None


def recent_usage(store: ObjectStore, head: Manifest, versions: int) -> tuple[int, Stats]:
    """Return the number of newest versions that are counted, and their usage. One request.

    The number is `versions`, or less if the history has fewer versions. Raises `Corruption` (the version before
    these is unreadable) and `Unavailable`.
    """
    totals, base_version = head.totals or Stats(), head.version - versions
    base = history.find(store, head.app, head.stage, base_version) if base_version > 0 else None
    return (versions, totals - (base.totals or Stats())) if base is not None else (head.version, totals)


def _sst_bytes(manifest: Manifest) -> int:
    own = keys.ssts(manifest.app, manifest.stage)
    return sum(sst.bytes for sst in all_ssts(manifest) if not sst.root and sst.object.startswith(own))
