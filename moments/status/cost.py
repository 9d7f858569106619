"""What an app costs: requests and bytes an hour, what is stored, and what S3 would take for it in a month.

Each manifest has the sums so far, so what a stage took in some time is the difference of two; the requests to find out
do not depend on how many versions lie in between, but for a search over their numbers.
"""

from dataclasses import dataclass

from msgspec.structs import astuple

from ...durations import HOUR_MS
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Prices, Stats, monthly_cost
from ...store.versions import apps, history, keys
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts
from ..cut.graph import order


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

    Raises `NotFound` (there is no such app) and `Unavailable`.
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
    `history.latest_at` and `history.first_version`, and a read. Raises `Corruption` (a manifest on the way is not
    readable) and `Unavailable`.
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
