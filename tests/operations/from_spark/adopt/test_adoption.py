"""A query becomes a stage with the expected rows, one version per batch, entirely or not at all."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused
from slackwater.operations.from_spark.adopt.adopting import AdoptionPlan, PreparedAdoption
from slackwater.operations.from_spark.adopt.attached import AttachedHistory
from slackwater.operations.from_spark.adopt.shadow import open_shadow
from slackwater.operations.maintenance.compact import StageCompactor
from slackwater.operations.maintenance.removal import remove_app
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.snapshot.query.log import describe_imported_batches
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.under_way.runners import Heartbeat, HeartbeatWriter
from slackwater.snapshot.verify.verify import verify
from slackwater.state.event_time import TimeRules
from slackwater.state.kinds.aggregate import Aggregates
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.kind import Groups
from slackwater.store.compaction.merge import iter_visible_rows
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, history
from ulid import ULID

from tests.crash.points import Killed, killed_at_each_call
from tests.models.profiles import scaled
from tests.operations.attach.following import START_MS, caught_up, rows_at, tail, versions
from tests.operations.attach.memory_checkpoint import MemoryCheckpoint, MemoryTable, Row
from tests.operations.from_spark.adopt.adopting import adoption, declared
from tests.support.collecting import AgingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.schema([("country", pa.string()), ("cents", pa.int64()), ("weight", pa.float64()), ("at", pa.int64())])
ORDERS = sw.aggregate(
    orders=sw.count(),
    cents=sw.sum("cents"),
    weight=sw.mean("weight"),
    least=sw.min("cents"),
    most=sw.max("cents"),
    newest=sw.last("cents", by="at"),
    oldest=sw.first("weight", by="at"),
)
BUFFER = pa.schema(
    [
        *(("count", pa.int64()), ("sum", pa.int64()), ("sum_2", pa.float64()), ("count_2", pa.int64())),
        *(("min", pa.int64()), ("max", pa.int64())),
        *(("valueWithExtremumOrdering", pa.int64()), ("extremumOrdering", pa.int64())),
        *(("valueWithExtremumOrdering_2", pa.float64()), ("extremumOrdering_2", pa.int64())),
    ]
)
"""Columns of Spark's state for the same aggregates."""
TOTALS = MemoryTable("", pa.schema([("country", pa.string())]), BUFFER)

row = st.fixed_dictionaries(
    {
        "country": st.sampled_from(["DE", "FR", "IT", None]),
        "cents": st.none() | st.integers(-9, 9),
        "weight": st.none() | st.integers(-9, 9).map(lambda number: number / 4),
    }
)


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Query:
    """A Spark query over some rows, and the rows that a stage would have."""

    def __init__(self, kind: Aggregates = ORDERS) -> None:
        self.checkpoint = MemoryCheckpoint((TOTALS,))
        self.table = declared(kind, ROWS, ["country"])
        self.stages: list[dict[Row, Row]] = []
        """Rows of the stage after each batch."""
        self._bound = kind.bind([ROWS], ("country",))
        self._stage: dict[Any, dict[str, Any]] = {}
        self._spark: dict[Any, list[Any]] = {}
        self._at = 0

    def batch(self, rows: list[dict[str, Any]]) -> None:
        rows = [each | {"at": self._at + number} for number, each in enumerate(rows)]
        self._at += len(rows)
        changed: dict[Row, Row | None] = {}
        for each in rows:
            kept = self._spark.setdefault(each["country"], [0, None, 0.0, 0, None, None, None, None, None, None])
            self._added(kept, each["cents"], each["weight"], each["at"])
        for key in {each["country"] for each in rows}:
            changed[(key,)] = tuple(self._spark[key])
        number = len(self.checkpoint.batches)
        self.checkpoint.commit({"": changed}, {"orders": (self._at, number)}, START_MS + 1_000 * number)
        self._merge(rows)
        names = [column.name for column in self.table.values]
        self.stages.append({(key,): tuple(values[name] for name in names) for key, values in self._stage.items()})

    @staticmethod
    def _added(kept: list[Any], cents: int | None, weight: float | None, at: int) -> None:
        kept[0] += 1
        if cents is not None:
            kept[1] = (kept[1] or 0) + cents
            kept[4] = cents if kept[4] is None else min(kept[4], cents)
            kept[5] = cents if kept[5] is None else max(kept[5], cents)
        if weight is not None:
            kept[2], kept[3] = kept[2] + weight, kept[3] + 1
        kept[6], kept[7] = cents, at
        if kept[9] is None:
            kept[8], kept[9] = weight, at

    def _merge(self, rows: list[dict[str, Any]]) -> None:
        keys = list(dict.fromkeys(each["country"] for each in rows))
        if not rows:
            return
        at = {key: number for number, key in enumerate(keys)}
        table = pa.Table.from_pylist(sorted(rows, key=lambda each: at[each["country"]]), schema=ROWS)
        ids = np.array(sorted(at[each["country"]] for each in rows), np.int32)
        groups = Groups(ids, np.flatnonzero(np.diff(ids, prepend=-1)))
        absent = dict.fromkeys(self._bound.values.names)
        old = pa.Table.from_pylist([self._stage.get(key, absent) for key in keys], schema=self._bound.values)
        merged = self._bound.merge(table, groups, pa.table({"country": pa.array(keys, pa.string())}), old)
        self._stage |= dict(zip(keys, merged.values.to_pylist(), strict=True))


def filled(batches: int = 5) -> Query:
    query = Query()
    for number in range(batches):
        some = ["DE", None, f"c{number}"]
        query.batch([{"country": each, "cents": number, "weight": number / 3} for each in some])
    return query


def is_there(store: ObjectStore) -> bool:
    """Return True if the app is visible."""
    try:
        apps.read_app(store, "shop")
        return bool(history.list_stages(store, "shop"))
    except (NotFound, Refused):
        return False


def check(store: ObjectStore, cache: SstCache, query: Query, first: int = 0, last: int | None = None) -> None:
    """Check that each version has the stage's rows after the same batch."""
    found = {each.adopted.next_batch - 1: each for each in versions(store) if each.adopted is not None}
    last = len(query.stages) - 1 if last is None else last
    assert list(found) == list(range(first, last + 1))
    for batch, version in found.items():
        assert rows_at(store, cache, version) == {"totals": query.stages[batch]}
        assert version.inputs["orders"].offsets == query.checkpoint.batches[batch].offsets["orders"]


@given(st.lists(st.lists(row, max_size=8), min_size=1, max_size=6))
@scaled(30)
def test_after_each_batch_the_stage_has_the_rows_that_it_would_have_computed(
    cache_folder: Path, batches: list[list[dict[str, Any]]]
) -> None:
    query, store, cache = Query(), MemoryStore(), SstCache(cache_folder, 1 << 30)
    for each in batches:
        query.batch(each)
    done = adoption(store, cache, query.checkpoint, query.table).run()
    check(store, cache, query)
    assert (done.last_batch, done.already) == (len(batches) - 1, False)
    assert done.checksum is not None
    assert done.checksum.rows == len(query.stages[-1])


def test_history_begins_at_the_first_readable_batch_and_ends_at_the_given_one(cache: SstCache) -> None:
    query, store = filled(6), MemoryStore()
    query.checkpoint.clean_up(before=2)
    done = adoption(store, cache, query.checkpoint, query.table, batches=range(2, 5)).run()
    check(store, cache, query, first=2, last=4)
    assert done.offsets == {"orders": query.checkpoint.batches[4].offsets["orders"]}
    first = versions(store)[0]
    assert (first.kind, first.time_ms, describe_imported_batches(first)) == ("init", START_MS + 2_000, "batches 0 to 2")
    assert verify(store, "shop", now_ms=START_MS, deep=True).consistent
    assert [each.verb for each in list_operations(store, "shop")] == ["adopt"]


def test_a_long_history_is_compacted_during_the_adoption(cache: SstCache) -> None:
    query, store = filled(40), MemoryStore()
    adoption(store, cache, query.checkpoint, query.table).run()
    check_rows = [each for each in versions(store) if each.kind == "compaction"]
    assert check_rows
    newest = versions(store)[-1]
    assert len(newest.ssts) < 40
    assert rows_at(store, cache, newest) == {"totals": query.stages[-1]}
    assert verify(store, "shop", now_ms=START_MS, deep=True).consistent


def test_a_repeated_adoption_reports_done(cache: SstCache) -> None:
    query, store = filled(3), MemoryStore()
    done = adoption(store, cache, query.checkpoint, query.table).run()
    before = set(store.list(""))
    again = adoption(store, cache, query.checkpoint, query.table).run()
    assert again.already
    assert (again.version, again.offsets) == (done.version, done.offsets)
    assert set(store.list("")) == before


def test_a_stage_that_already_has_versions_is_refused(cache: SstCache) -> None:
    query, store = filled(3), MemoryStore()
    adoption(store, cache, query.checkpoint, query.table).run()
    other = filled(2)
    other.checkpoint.query = "another"
    with pytest.raises(Refused, match="shop/totals: the stage already has versions"):
        adoption(store, cache, other.checkpoint, other.table).run()


def test_a_second_query_becomes_another_stage_of_the_same_app(cache: SstCache) -> None:
    query, other, store = filled(3), filled(2), MemoryStore()
    other.checkpoint.query = "another"
    adoption(store, cache, query.checkpoint, query.table).run()
    adoption(store, cache, other.checkpoint, other.table, stage="others").run()
    assert history.list_stages(store, "shop") == ("others", "totals")
    assert rows_at(store, cache, history.read(store, "shop", "others", 2)) == {"others": other.stages[-1]}


def test_a_value_without_a_column_aborts_and_leaves_nothing(cache: SstCache) -> None:
    query, store = filled(3), MemoryStore()
    rows = pa.schema([("country", pa.string()), ("cents", pa.int64()), ("weight", pa.float64()), ("at", pa.int8())])
    narrow = declared(ORDERS, rows, ["country"])
    query.checkpoint.commit(
        {"": {("XX",): (1, 1, 1.0, 1, 1, 1, 1, 1_000, 1.0, 1)}}, {"orders": (99, 9)}, START_MS + 9_000
    )
    with pytest.raises(Refused, match="1000"):
        adoption(store, cache, query.checkpoint, narrow).run()
    assert not list(store.list(""))


def test_changes_that_do_not_lead_to_the_last_state_abort_the_adoption(cache: SstCache) -> None:
    query, store = filled(4), MemoryStore()
    # A change that the last state lacks.
    query.checkpoint._changes[2] = {"": {("DE",): query.checkpoint._states[0][""][("DE",)], ("lost",): (1,) * 10}}
    with pytest.raises(Refused, match="Spark reads 6 rows"):
        adoption(store, cache, query.checkpoint, query.table).run()
    assert not list(store.list(""))
    adoption(store, cache, query.checkpoint, query.table, batches=range(2)).run()
    check(store, cache, query, last=1)


def test_a_killed_adoption_is_invisible_until_the_same_call_finishes_it(cache: SstCache) -> None:
    query = filled(6)

    def work(store: AgingStore) -> None:
        adoption(store, cache, query.checkpoint, query.table).run()

    for store, _ in killed_at_each_call("adopt", AgingStore, work, lambda store: store):
        if is_there(store):
            check(store, cache, query)
        work(store)
        check(store, cache, query)
        assert verify(store, "shop", now_ms=START_MS).consistent


def test_an_interrupted_adoption_can_be_abandoned(cache: SstCache) -> None:
    query, store = filled(20), AgingStore()
    with store.death_after(40), pytest.raises(Killed):
        adoption(store, cache, query.checkpoint, query.table).run()

    def later(seconds: float) -> None:
        store.clock_ms += 1 + int(1_000 * seconds)

    with pytest.raises(Refused, match="its clone or adoption is running, or was interrupted"):
        history.list_stages(store, "shop")
    remove_app(store, "shop", by="me@host", now_ms=START_MS, pause=later)
    assert apps.find_app(store, "shop") is None
    adoption(store, cache, query.checkpoint, query.table).run()
    check(store, cache, query)


class Span(dict[str, int]):
    """A time window as a key value."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.values()))


def test_windows_fall_due_from_the_querys_watermark_on(cache: SstCache) -> None:
    """Windows that the query has emitted are not emitted again, but later windows are."""
    window = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    rows = pa.schema([("window", window), ("country", pa.string())])
    table = declared(FinalKind(sw.aggregate(orders=sw.count())), rows, ["window", "country"])
    key = pa.schema([("window", window), ("country", pa.string())])
    checkpoint = MemoryCheckpoint((MemoryTable("", key, pa.schema([("count", pa.int64())]), "window"),))
    hour = 3_600_000_000
    first, second = ((Span(start=at, end=at + hour), "DE") for at in (0, hour))
    checkpoint.commit({"": {first: (1,), second: (1,)}}, {"orders": (1, 1)}, START_MS, None, 0)
    checkpoint.commit({"": {first: None, second: (2,)}}, {"orders": (2, 2)}, START_MS + 1, 3_600_000, 7_000_000)
    store = MemoryStore()
    adoption(store, cache, checkpoint, table, rules=TimeRules(timed={"orders"}, due_by="watermark")).run()
    newest = versions(store)[-1]
    assert newest.table is not None
    ((only,),) = (
        each.to_pylist() for p in range(2) for each in iter_visible_rows(store, cache, newest.ssts, newest.table, p, 0)
    )
    assert (only["orders"], only["_due_at"], only["country"]) == (2, 7_200_000, "DE")
    assert only["window"]["start"].hour == 1
    assert newest.event_time is not None
    assert (newest.event_time.due_ms, newest.watermark_ms) == (3_600_000, 7_000_000)
    assert newest.inputs["orders"].watermark_ms == 7_000_000
    assert not newest.event_time.has_unemitted_due_rows or newest.event_time.next_due_ms is not None


def test_an_attached_apps_history_becomes_the_stages_history(cache: SstCache) -> None:
    query, store = filled(4), MemoryStore()
    following = tail(store, cache, query.checkpoint)
    caught_up(following)
    for number in range(4, 20):
        query.batch([{"country": each, "cents": number, "weight": 0.5} for each in ("DE", f"c{number - 3}")])
    caught_up(following)
    StageCompactor(
        store, cache, versions(store)[-1], by="me", threads=1, now_ms=lambda: 0, stop=threading.Event()
    ).merge_until_done()
    for number in range(20, 23):
        query.batch([{"country": "DE", "cents": number, "weight": 0.5}])
    query.checkpoint.clean_up(before=18)
    history_of_both = AttachedHistory(store, cache, "shop", "totals", query.checkpoint)
    assert history_of_both.readable_batches() == range(23)
    target = MemoryStore()
    adoption(target, cache, history_of_both, query.table).run()
    check(target, cache, query)
    query.checkpoint.clean_up(before=22)
    assert AttachedHistory(store, cache, "shop", "totals", query.checkpoint).readable_batches() == range(22, 23)


def test_an_app_with_a_running_stage_of_that_name_is_refused(cache: SstCache, tmp_path: Path) -> None:
    query, other, store = filled(3), filled(2), LocalStore(tmp_path / "store")
    other.checkpoint.query = "another"
    adoption(store, cache, query.checkpoint, query.table).run()
    HeartbeatWriter(store, "shop").write_if_due(lambda: Heartbeat(str(ULID()), "host:2", {"totals": 1}))
    with pytest.raises(Refused, match="totals of shop run on host:2: a stage cannot be adopted"):
        adoption(store, cache, other.checkpoint, other.table, stage="others").run()
    assert history.list_stages(store, "shop") == ("totals",)


def test_a_query_that_reads_no_topic_cannot_be_compared_with_the_program(cache: SstCache) -> None:
    query, store = Query(), MemoryStore()
    query.batch([{"country": "DE", "cents": 1, "weight": None}])
    of_files = adoption(store, cache, query.checkpoint, query.table, constant_offsets={"orders": (0, 0)})
    plan = AdoptionPlan("shop", "totals", "q", "memory:", range(1), ("",), query.table, (), {"orders": (0, 0)})
    adopting = PreparedAdoption(
        plan, of_files, None, None, sw.App("shop"), query.checkpoint, cast("SparkSession", None)
    )
    refused = pytest.raises(Refused, match="no offsets of the topic 'orders', so its batches cannot be replayed")
    with refused as refusal, open_shadow(adopting, cache, MemoryKafka("memory://shadow")):
        pass
    assert refusal.value.hint == "use --dry-run without --shadow to see how the state would be mapped"
    assert list(store.list("")) == []
