"""What an app costs: requests and bytes an hour, what is stored, and what S3 would take for it in a month."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...store.objects.prices import Prices, monthly_cost
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Stats
from ...store.versions import apps, history
from ...store.versions.usage import StageUsage, hourly, usage_since
from ..cut.graph import order

_RATES = ("gets", "puts", "lists", "deletes", "bytes_read", "bytes_written")


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

    Raises:
        NotFound: there is no such app.
        Unavailable: the store does not answer.
    """
    apps.read_app(store, app)
    names = history.list_stages(store, app)
    found = {name: usage for name in names if (usage := usage_since(store, app, name, since_ms)) is not None}
    heads = {name: history.read(store, app, name, usage.version) for name, usage in found.items()}
    stages = tuple(_stage(found[name], prices) for name in order(heads))
    return AppCost(app, since_ms, prices, stages, _total(stages))


def _stage(usage: StageUsage, prices: Prices) -> StageCost:
    rate = hourly(usage.taken) or Stats()
    cost = monthly_cost(rate, usage.stored_bytes, prices)
    return StageCost(
        stage=usage.stage,
        versions=usage.versions,
        counted_ms=usage.taken.ms,
        **{name: getattr(rate, name) for name in _RATES},
        **{name: getattr(usage, name) for name in ("table_bytes", "sst_bytes", "stored_bytes")},
        requests_cost=cost.requests,
        traffic_cost=cost.traffic,
        storage_cost=cost.storage,
        monthly_cost=cost.total,
    )


def _total(stages: Sequence[StageCost]) -> StageCost:
    numbers = [name for name in StageCost.__slots__ if name != "stage"]
    return StageCost("total", *(sum(getattr(stage, name) for stage in stages) for name in numbers))
