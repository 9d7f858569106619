"""Cost of an app: requests and bytes per hour, stored bytes, and the monthly price in S3.

Each manifest has running totals. So the usage over a period is the difference of two manifests. A binary search over
version numbers finds the manifests.
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
class StageCost:
    """Cost of one stage, or of all stages together. Requests and bytes are per hour of the stage's run time.

    For a clone, the SSTs of its source are not counted.
    """

    stage: str
    versions: int
    counted_ms: int
    """Time that the counted versions cover. 0 if no version was committed recently; then all rates are 0."""
    gets: int
    puts: int
    lists: int
    deletes: int
    bytes_read: int
    bytes_written: int
    table_bytes: int
    sst_bytes: int
    """Size of all SSTs of the gapless history: the SSTs of the first version, and all SSTs written since then."""
    stored_bytes: int
    """Bytes that S3 bills: SSTs, and all objects written since the first version, including manifests and orphans."""
    requests_cost: float
    """Price of the requests per month. The other prices are per month as well."""
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
    """Return the cost of an app, from its stored bytes and from the versions committed after `since_ms`.

    Raises `NotFound` (no such app).
    """
    apps.read_app(store, app)
    heads = {name: head for name in history.list_stages(store, app) if (head := history.head(store, app, name))}
    stages = tuple(stage_cost(store, heads[name], since_ms, prices) for name in topological_order(heads))
    total = (sum(getattr(stage, name) for stage in stages) for name in StageCost.__slots__ if name != "stage")
    return AppCost(app, since_ms, prices, stages, StageCost("total", *total))


def stage_cost(store: ObjectStore, head: Manifest, since_ms: int, prices: Prices) -> StageCost:
    """Return the cost of a stage, from the usage of the versions committed after `since_ms`.

    The usage of a version covers the time since the previous version, so the counted time may begin before `since_ms`.
    Makes the requests of `history.latest_at` and `history.first_version`, and one read.
    """
    number = history.first_version(store, head.app, head.stage)
    first = history.find(store, head.app, head.stage, number) or head
    base = history.latest_at(store, head.app, head.stage, since_ms) or first
    began, now = first.totals or Stats(), head.totals or Stats()
    at_first, at_head, since_first = _sst_bytes(first), _sst_bytes(head), now - began
    sst_bytes = max(at_head, at_first + since_first.flushed_bytes + since_first.compacted_bytes)
    stored_bytes = max(sst_bytes, at_first + since_first.bytes_written)
    usage = now - (base.totals or Stats())
    rate = per_hour(usage) or Stats()
    cost = monthly_cost(rate, stored_bytes, prices)
    rates = (rate.gets, rate.puts, rate.lists, rate.deletes, rate.bytes_read, rate.bytes_written)
    money = (cost.requests, cost.traffic, cost.storage, cost.total)
    versions = head.version - base.version
    return StageCost(head.stage, versions, usage.ms, *rates, at_head, sst_bytes, stored_bytes, *money)


def per_hour(usage: Stats) -> Stats | None:
    """Return the usage per hour of run time; None if the usage covers no time."""
    return Stats(*(round(number * HOUR_MS / usage.ms) for number in astuple(usage))) if usage.ms else None


def recent_usage(store: ObjectStore, head: Manifest, versions: int) -> tuple[int, Stats]:
    """Return the number of counted versions, and their usage: the newest `versions` versions of a stage.

    Counts all versions of the stage if it has fewer, or if the version before the counted versions was collected. Makes
    one request. Raises `Corruption` (the version before the counted versions is unreadable) and `Unavailable`.
    """
    totals, base_version = head.totals or Stats(), head.version - versions
    base = history.find(store, head.app, head.stage, base_version) if base_version > 0 else None
    return (versions, totals - (base.totals or Stats())) if base is not None else (head.version, totals)


def _sst_bytes(manifest: Manifest) -> int:
    own = keys.ssts(manifest.app, manifest.stage)
    return sum(sst.bytes for sst in all_ssts(manifest) if not sst.root and sst.object.startswith(own))
