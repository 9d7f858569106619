"""Requests, bytes and money computed from manifests, for `status --cost` and `status APP`."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from slackwater.cli import main
from slackwater.common import instants
from slackwater.snapshot.status.cost import StageCost, per_hour, recent_usage, stage_cost
from slackwater.store.objects.counting import CountingStore, Prices, Stats, monthly_cost
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.amend import with_stats
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table
from typer.testing import CliRunner, Result

from tests.support.manifests import claim

HOUR_MS = 3_600_000
TABLE = Table((Column("k", "string"),), (Column("n", "int64"),), 1)
A_BATCH = Stats(ms=2_000, gets=3, puts=2, lists=8, bytes_read=500, keys=100, searched=180, filtered=60, cache_hits=2)


@dataclass
class Written:
    """A stage that commits a version per second, with artificial SSTs and statistics."""

    store: ObjectStore
    app: str = "shop"
    stage: str = "customers"
    now_ms: int = 0
    made: list[Manifest] = field(default_factory=list)
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        first = claim(
            self.store,
            self.app,
            self.stage,
            writer="w",
            by="test:1",
            now_ms=self.now_ms,
            build=lambda draft: replace(draft, table=TABLE),
        )
        self.made.append(first)

    @property
    def head(self) -> Manifest:
        return self.made[-1]

    def sst(self, size: int, level: int) -> Sst:
        name = f"{self.app}/stages/{self.stage}/sst/{next(self._names):03}.parquet"
        seq = self.head.version + 1
        return Sst(name, 0, level, min(10, size), size, "", 0, 1, seq if not level else 1, seq, 0, "", 0)

    def commit(self, ssts: Sequence[Sst], taken: Stats | None) -> None:
        """Commit the next version, a second later."""
        self.now_ms += 1_000
        draft = successor(self.head, kind="batch", epoch=1, writer="w", by="test:1", now_ms=self.now_ms)
        draft = replace(draft, ssts=tuple(ssts))
        made = with_stats(self.head, draft, taken) if taken is not None else draft
        commit(self.store, made)
        self.made.append(made)

    def batch(self, size: int = 100, taken: Stats = A_BATCH) -> None:
        self.commit((self.sst(size, 0), *self.head.ssts), taken + Stats(puts=1, bytes_written=size + 40))

    def merge(self, taken: Stats = A_BATCH) -> None:
        """Commit a version that merges all SSTs into one of half the size."""
        size = sum(sst.bytes for sst in self.head.ssts) // 2
        self.commit((self.sst(size, 1),) if size else (), taken + Stats(puts=1, bytes_written=size + 40))


def cost_since(written: Written, since_ms: int) -> StageCost:
    return stage_cost(written.store, written.head, since_ms, Prices())


@given(st.lists(st.sampled_from([1, 10, 1000, "merge", "uncounted"]), max_size=20), st.data())
def test_usage_between_two_manifests_is_their_difference(what: list[int | str], data: st.DataObject) -> None:
    written = Written(MemoryStore())
    for each in what:
        match each:
            case "merge":
                written.merge()
            case "uncounted":
                written.commit(written.head.ssts, None)
            case int(size):
                written.batch(size)
    since_ms = data.draw(st.integers(-1, written.now_ms + 1))
    cost = cost_since(written, since_ms)
    later = [made for made in written.made[1:] if made.time_ms > since_ms]
    usage = sum((made.stats for made in later if made.stats), Stats())
    rate = per_hour(usage) or Stats()
    assert (cost.versions, cost.counted_ms) == (len(later), usage.ms)
    assert (cost.gets, cost.puts, cost.lists, cost.bytes_read) == (rate.gets, rate.puts, rate.lists, rate.bytes_read)
    assert (cost.deletes, cost.bytes_written) == (rate.deletes, rate.bytes_written)
    # Every SST that a version names, once.
    named = {sst.object: sst.bytes for made in written.made for sst in made.ssts}
    assert cost.sst_bytes == sum(named.values())
    assert cost.stored_bytes == cost.sst_bytes + 40 * sum(made.stats is not None for made in written.made)
    assert cost.table_bytes == sum(sst.bytes for sst in written.head.ssts)


def test_the_cost_takes_few_requests_for_any_length_of_history() -> None:
    written = Written(CountingStore(MemoryStore()))
    for _ in range(3_000):
        written.commit(written.head.ssts, A_BATCH)
    fresh = CountingStore(written.store)  # nothing read before is remembered for it
    assert stage_cost(fresh, written.head, 1_500_000, Prices()).versions == 1_500
    assert fresh.requests < 40
    fresh = CountingStore(written.store)
    assert recent_usage(fresh, written.head, 100) == (100, Stats(*(100 * number for number in astuple(A_BATCH))))
    assert fresh.requests == 1


def test_a_history_shorter_than_the_period_is_counted_completely() -> None:
    written = Written(MemoryStore())
    written.batch()
    assert recent_usage(written.store, written.head, 100) == (2, written.head.totals)


def test_a_stage_without_statistics_costs_only_the_storage_of_its_table() -> None:
    written = Written(MemoryStore())
    written.commit((written.sst(70, 0),), None)
    cost = cost_since(written, -1)
    assert (cost.counted_ms, cost.gets, cost.table_bytes, cost.stored_bytes) == (0, 0, 70, 70)


def test_a_clone_does_not_pay_for_shared_objects() -> None:
    written = Written(MemoryStore())
    shared = [replace(written.sst(70, 0), object="other/stages/customers/sst/1.parquet")]
    shared += [replace(written.sst(70, 0), root="s3://elsewhere")]
    written.commit((*shared, written.sst(5, 0)), None)
    assert cost_since(written, -1).stored_bytes == 5


def test_rates_refer_to_the_counted_time() -> None:
    assert per_hour(Stats(ms=60_000, gets=2, bytes_read=10)) == Stats(ms=HOUR_MS, gets=120, bytes_read=600)
    assert per_hour(Stats(gets=2)) is None


def test_the_price_of_a_month_includes_requests_bytes_and_storage() -> None:
    cost = monthly_cost(Stats(gets=2_000, puts=1_000, lists=1_000, deletes=9_999), 10 << 30, Prices())
    assert cost.requests == pytest.approx(730 * (2 * 0.0004 + 0.005 + 0.005))
    assert (cost.traffic, cost.storage) == (0, pytest.approx(0.23))
    dear = Prices(read_per_gb=0.09, delete_per_1000=1, stored_per_gb_month=0)
    cost = monthly_cost(Stats(deletes=1_000, bytes_read=1 << 30), 10 << 30, dear)
    assert (cost.requests, cost.storage) == (730, 0)
    assert cost.traffic == pytest.approx(730 * 0.09)
    assert cost.total == cost.requests + cost.traffic


@pytest.fixture
def shop(isolated: None, tmp_path: Path) -> Written:
    """Return an app of one stage, half an hour old, with three batches, a merge, and another batch."""
    store = open_store(str(tmp_path / "store"))
    apps.ensure_app(store, AppInfo("shop", 1))
    written = Written(store, now_ms=instants.now_ms() - HOUR_MS // 2)
    for _ in range(3):
        written.batch(1_000_000)
    written.merge()
    written.batch(1_000_000, A_BATCH + Stats(commits=4, commit_ms=80, cache_misses=2))
    return written


def slackwater(*args: str) -> Result:
    return CliRunner().invoke(main.app, args)


def from_json(*args: str) -> Any:
    result = slackwater(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("shop")
def test_status_of_an_app_shows_figures_of_its_tables() -> None:
    (found,) = from_json("status", "shop")
    assert found["stages"][0]["figures"] == {
        "versions": 6,
        "l0_files": 1,
        "debt_bytes": 0,
        "read_amplification": 1.2,
        "write_amplification": 5_500_000 / 4_000_000,
        "filter_hits": 1 / 3,
        "cache_hits": 10 / 12,
        "commit_ms": 20.0,
    }
    shown = slackwater("status", "shop").stdout.splitlines()
    heading = next(number for number, line in enumerate(shown) if line.startswith("table"))
    assert shown[heading + 1].split() == ["customers", "1", "0", "B", "1.2", "1.4", "83%", "33%", "20", "ms", "6"]
    (found,) = from_json("status")
    assert found["stages"][0]["figures"] is None


def test_status_of_versions_without_statistics_has_no_figures(shop: Written) -> None:
    Written(shop.store, stage="idle", now_ms=shop.now_ms)
    (found,) = from_json("status", "shop")
    (idle,) = (stage["figures"] for stage in found["stages"] if stage["stage"] == "idle")
    assert (idle["l0_files"], idle["read_amplification"], idle["commit_ms"]) == (0, None, None)


def test_status_cost_shows_requests_bytes_and_money(shop: Written, tmp_path: Path) -> None:
    Written(shop.store, stage="idle", now_ms=shop.now_ms)
    (found,) = from_json("status", "shop", "--cost")
    by_stage = {stage["stage"]: stage for stage in found["stages"]}
    busy = by_stage["customers"]
    # Five versions of two seconds.
    assert (busy["versions"], busy["counted_ms"]) == (5, 10_000)
    assert (busy["gets"], busy["puts"], busy["lists"], busy["deletes"]) == (3 * 1_800, 3 * 1_800, 8 * 1_800, 0)
    assert (busy["table_bytes"], busy["sst_bytes"], busy["stored_bytes"]) == (2_500_000, 5_500_000, 5_500_200)
    expected = 730 * (5.4 * 0.0004 + 5.4 * 0.005 + 14.4 * 0.005)
    assert busy["requests_cost"] == pytest.approx(expected)
    assert (by_stage["idle"]["counted_ms"], by_stage["idle"]["monthly_cost"]) == (0, 0)
    assert found["total"] == busy | {"stage": "total"}
    (tmp_path / "slackwater.toml").write_text('[prices]\nlist_per_1000 = 0\nput_per_1000 = 0\ncurrency = "EUR"')
    (found,) = from_json("status", "--cost")
    assert found["total"]["requests_cost"] == pytest.approx(730 * 5.4 * 0.0004)
    shown = slackwater("status", "--cost").stdout
    assert "EUR/month" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("customers")] == [
        ["customers", "5,400", "5,400", "14,400", "0", "900.0", "kB", "2.0", "GB", "5.5", "MB", "1.58"]
    ]


@pytest.mark.usefixtures("shop")
def test_status_cost_covers_the_requested_period() -> None:
    (found,) = from_json("status", "shop", "--cost", "--since", "10m")
    assert (found["total"]["versions"], found["total"]["counted_ms"]) == (0, 0)
    assert found["total"]["stored_bytes"] == 5_500_200
    assert "-" in slackwater("status", "--cost", "--since", "10m").stdout


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--cost", "--since", "soon"), "'soon' is not a span of time"),
        (("--cost", "--watch"), "exclude each other"),
        (("--since", "1h"), "--since needs --cost"),
    ],
)
def test_invalid_arguments_are_refused(words: tuple[str, ...], expected: str) -> None:
    result = slackwater("status", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_the_store_is_given_by_its_usual_option(shop: Written, tmp_path: Path) -> None:
    (found,) = from_json("status", "--cost", "--store", str(tmp_path / "store"))
    assert found["app"] == "shop"
    assert history.head(shop.store, "shop", "customers") == shop.head
    assert "no app in this store" in slackwater("status", "--cost", "--store", str(tmp_path / "none")).stdout
