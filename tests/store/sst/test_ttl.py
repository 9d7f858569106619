"""Time to live: its clocks, its effect on readers and compaction, and its declaration."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, Usage
from slackwater.pipeline.api.app import App
from slackwater.pipeline.api.table import check_ttl, table
from slackwater.pipeline.api.topic import topic
from slackwater.snapshot.cut.graph import Cut
from slackwater.state.kinds.upsert import upsert
from slackwater.store.compaction import picker
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick
from slackwater.store.compaction.plan import Compaction, apply_results
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import schema, ttl
from slackwater.store.sst.schema import EXPIRES
from slackwater.store.sst.sorted_runs import overlapped_partitions
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Manifest, Policy, Table, Ttl

from tests.models.profiles import scaled
from tests.support.state_rows import Hashes, Key, Values, columns, manifest_of, write_version

DAY_MS = 86_400_000
TABLE = Table((Column("k", "string"),), (Column("v", "int64"),), 1, ttl=Ttl(100))
FOR_EVER = replace(TABLE, ttl=None)


@pytest.fixture(params=[1 << 30, 0], ids=["mapped", "files"])
def cache(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SstCache]:
    with closing(SstCache(tmp_path / "cache", request.param)) as cache:
        yield cache


class Tables:
    """Versions of a table that are written at given times. The newest SST comes first."""

    def __init__(self, store: CountingStore, cache: SstCache, table: Table = TABLE) -> None:
        self.store, self.cache, self.table, self.ssts, self.seq = store, cache, table, (), 0
        self.ssts: tuple[Sst, ...] = ()

    def put(self, clock_ms: int, /, table: Table | None = None, **rows: int | None) -> None:
        self.seq += 1
        changes: dict[Key, Values | None] = {(key,): None if v is None else (v,) for key, v in rows.items()}
        table = table or self.table
        ssts = write_version(self.store, None, table, changes, self.seq, Hashes(2), clock_ms=clock_ms)
        self.ssts = (*ssts, *self.ssts)

    def read(self, clock_ms: int) -> dict[str, int]:
        """Return the visible rows. First checks that look-ups and DuckDB find the same rows."""
        names: list[Key] = [("a",), ("b",), ("c",), ("d",)]
        keys = columns(self.table.key, names)
        hashes = Hashes(2).of(self.table, keys)
        values, there = multi_get(self.store, self.cache, self.ssts, self.table, hashes, keys, clock_ms=clock_ms)
        rows = zip(names, values["v"].to_pylist(), there.tolist(), strict=True)
        found = {str(key): value for (key,), value, present in rows if present}
        with duckdb.connect() as con:
            register_table(con, "t", self.store, self.cache, manifest_of(self.table, self.ssts, clock_ms=clock_ms))
            assert dict(con.sql("FROM t").fetchall()) == found
        return found

    def merge(self, start: int, end: int, clock_ms: int) -> None:
        inputs = self.ssts[start:end]
        one = Compaction(0, self.table.partitions, inputs, end == len(self.ssts), clock_ms=clock_ms)
        self.ssts = apply_results(self.ssts, [run_compaction(self.store, self.cache, "app", "stage", self.table, one)])


@pytest.fixture
def tables(store: CountingStore, cache: SstCache) -> Tables:
    return Tables(store, cache)


def test_a_row_is_visible_until_its_last_millisecond(tables: Tables) -> None:
    tables.put(1000, a=1)
    tables.put(1050, b=2)
    assert tables.read(1099) == {"a": 1, "b": 2}
    assert tables.read(1100) == {"b": 2}
    assert tables.read(1150) == {}


def test_an_expired_row_still_hides_the_previous_one(tables: Tables) -> None:
    tables.put(0, FOR_EVER, a=1, b=1)
    tables.put(1000, a=2)
    assert tables.read(1100) == {"b": 1}


def test_a_merge_without_the_oldest_run_keeps_expired_rows_and_one_with_it_drops_them(tables: Tables) -> None:
    tables.put(0, FOR_EVER, a=1, b=1)
    tables.put(1000, a=2, c=2)
    tables.put(1010, c=3, d=None)
    tables.merge(0, 2, 1200)
    assert (len(tables.ssts), tables.ssts[0].rows, tables.ssts[0].expiring) == (2, 3, 2)
    assert tables.read(1200) == {"b": 1}
    tables.merge(0, 2, 1200)
    assert [(sst.rows, sst.expiring, sst.tombstones) for sst in tables.ssts] == [(1, 0, 0)]
    assert tables.read(1200) == {"b": 1}


def test_a_merge_uses_the_clock_of_the_version_so_that_no_version_loses_rows(tables: Tables) -> None:
    tables.put(1000, a=1)
    tables.put(1001, b=1)
    tables.merge(0, 2, 1100)
    assert tables.read(1100) == {"b": 1}


def test_runs_with_and_without_expiry_are_read_and_merged_together(tables: Tables, store: CountingStore) -> None:
    tables.put(0, FOR_EVER, a=1, b=1)
    tables.put(1000, b=2, c=2)
    for peek in (True, False):
        if peek:
            tables.cache.open(store, tables.ssts[1], tables.table)  # kept as it is stored, without the column
        assert tables.read(1050) == {"a": 1, "b": 2, "c": 2}
        assert tables.read(1100) == {"a": 1}
    # The older shape first, or last: neither decides.
    with duckdb.connect() as con:
        for ssts in (tables.ssts, tables.ssts[::-1]):
            register_table(con, "t", store, tables.cache, manifest_of(TABLE, ssts, clock_ms=1100))
            assert con.sql("FROM t").fetchall() == [("a", 1)]
    tables.merge(0, 2, 1050)
    (merged,) = tables.ssts
    assert (merged.rows, merged.expiring, merged.expires_min, merged.expires_max) == (3, 2, 1100, 1100)
    assert tables.read(1099) == {"a": 1, "b": 2, "c": 2}
    assert tables.read(1100) == {"a": 1}


def test_completely_expired_ssts_are_dropped_without_being_read(tables: Tables, store: CountingStore) -> None:
    tables.put(1000, a=1, b=1)
    tables.put(1010, b=None)
    store.reset()
    tables.merge(0, 2, 1100)
    assert (tables.ssts, store.requests) == ((), 0)


@pytest.mark.parametrize("wide_bytes", [1 << 20, 0], ids=["small", "large"])
def test_an_expired_sst_over_all_partitions_is_dropped_only_with_the_older_rows_it_hides(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, wide_bytes: int
) -> None:
    monkeypatch.setattr(picker, "WIDE_BYTES", wide_bytes)
    tables.table = replace(TABLE, partitions=2)
    tables.put(0, replace(FOR_EVER, partitions=2), a=1, b=1, c=1, d=1)
    tables.ssts = tuple(sst for sst in tables.ssts if sst.partition == 1)
    assert tables.read(1100)
    tables.put(1000, TABLE, a=2, b=2, c=2, d=2)
    expired = tables.ssts[0]
    assert len(overlapped_partitions(expired, 2)) == 2
    assert tables.read(1100) == {}
    while due := pick(tables.ssts, 2, Policy(), clock_ms=1100):
        done = [run_compaction(tables.store, tables.cache, "app", "stage", tables.table, one) for one in due]
        tables.ssts = apply_results(tables.ssts, done)
        assert tables.read(1100) == {}
    assert expired not in tables.ssts


def test_an_sst_with_rows_that_never_expire_is_not_dropped(tables: Tables) -> None:
    tables.put(1000, a=1)
    (sst,) = tables.ssts
    assert ttl.has_no_visible_rows(sst, 1100)
    assert not ttl.has_no_visible_rows(sst, 1099)
    assert not ttl.has_no_visible_rows(replace(sst, rows=2), 1100)
    assert ttl.has_no_visible_rows(replace(sst, rows=2, tombstones=1), 1100)
    assert not ttl.has_no_visible_rows(replace(sst, expiring=0), 1100)
    assert ttl.has_no_visible_rows(replace(sst, expiring=0, tombstones=1), 0)


def test_mostly_expired_runs_are_merged_even_if_they_are_few(tables: Tables) -> None:
    tables.put(0, a=1, b=1)
    tables.put(1000, c=1)
    assert pick(tables.ssts, 1, Policy(), clock_ms=99) == ()
    (picked,) = pick(tables.ssts, 1, Policy(), clock_ms=150)
    assert (picked.inputs, picked.drops_tombstones, picked.clock_ms) == (tables.ssts, True, 150)
    # The newer run would be read and written for little: only the oldest is worth it.
    larger = replace(tables.ssts[0], bytes=10 * tables.ssts[1].bytes)
    (picked,) = pick((larger, tables.ssts[1]), 1, Policy(), clock_ms=150)
    assert picked.inputs == tables.ssts[1:]
    assert pick((replace(larger, expiring=0), replace(tables.ssts[1], expiring=0)), 1, Policy(), clock_ms=5000) == ()


def test_a_run_is_not_rewritten_for_expired_rows_that_are_already_dropped(tables: Tables) -> None:
    tables.put(0, a=1)
    tables.put(1000, b=1, c=1)
    tables.merge(0, 2, 0)
    (picked,) = pick(tables.ssts, 1, Policy(), clock_ms=600)
    tables.merge(0, 1, 600)
    assert picked.inputs
    assert tables.ssts[0].expires_min == 1100
    assert pick(tables.ssts, 1, Policy(), clock_ms=600) == ()


def test_reading_a_table_with_ttl_without_a_clock_is_an_error(tables: Tables) -> None:
    keys = columns(TABLE.key, [("a",)])
    with pytest.raises(ValueError, match="clock"):
        multi_get(tables.store, tables.cache, (), TABLE, Hashes().of(TABLE, keys), keys)


def head(table: Table, clock_ms: int) -> Manifest:
    return manifest_of(table, (), clock_ms=clock_ms)


def test_by_write_time_the_clock_is_the_wall_clock_and_never_goes_back() -> None:
    assert ttl.batch_clock_ms(head(TABLE, 50), 70) == 70
    assert ttl.batch_clock_ms(head(TABLE, 50), 30) == 50
    # People see the head as of now, and a version as it was committed.
    assert ttl.read_clock_ms(head(TABLE, 50), 70) == 70
    assert ttl.read_clock_ms(head(TABLE, 50), 0) == 50


@pytest.mark.parametrize("lifetime_of", [Ttl(100, "at"), Ttl(0), Ttl(0, "at")])
def test_by_event_time_or_turned_off_the_clock_stands_still_without_records(lifetime_of: Ttl) -> None:
    table = replace(TABLE, ttl=lifetime_of)
    assert ttl.batch_clock_ms(head(table, 50), 70) == 50
    assert ttl.read_clock_ms(head(table, 50), 70) == 50


def test_a_tables_clock_starts_with_its_first_ttl_and_continues() -> None:
    by_event = replace(TABLE, ttl=Ttl(100, "at"))
    assert ttl.claim_clock_ms(None, by_event, 0) == ttl.BEFORE_FIRST_EVENT_MS
    assert ttl.claim_clock_ms(FOR_EVER, by_event, 0) == ttl.BEFORE_FIRST_EVENT_MS
    assert ttl.claim_clock_ms(by_event, replace(by_event, ttl=Ttl(0, "at")), 50) == 50
    assert ttl.claim_clock_ms(replace(by_event, ttl=Ttl(0, "at")), by_event, 50) == 50
    assert ttl.claim_clock_ms(None, FOR_EVER, 0) == ttl.claim_clock_ms(None, TABLE, 0) == 0


def test_rows_expire_in_a_cut_as_of_the_time_of_reading_and_in_a_snapshot_as_of_its_versions() -> None:
    manifest = replace(head(TABLE, 50), stage="s")
    assert Cut("app", {"s": manifest}, seen_ms=70).clock_ms("s") == 70
    assert Cut("app", {"s": manifest}).clock_ms("s") == 50


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([datetime(1970, 1, 2, tzinfo=UTC), None], "timestamp[us, tz=UTC]", [DAY_MS, None]),
        ([datetime(1970, 1, 1, 0, 0, 0, 1999, UTC).replace(tzinfo=None)], "timestamp[us]", [1]),
        ([date(1969, 12, 31), date(9999, 12, 31)], "date32[day]", [-DAY_MS, 253402214400000]),
    ],
)
def test_event_times_are_milliseconds_for_all_types(
    values: list[object], kind: str, expected: list[int | None]
) -> None:
    table = replace(TABLE, values=(Column("at", kind),), ttl=Ttl(7, "at"))
    rows = columns(table.values, [(value,) for value in values])
    rows = rows.append_column("_op", pa.array([0] * len(values), pa.int8()))
    stamped = schema.with_expiry(rows, table, 123)
    assert stamped[EXPIRES].to_pylist() == [None if at is None else at + 7 for at in expected]
    assert schema.latest_event_ms(stamped, table.ttl) == max(at for at in expected if at is not None)
    deleted = rows.set_column(1, "_op", pa.array([1] * len(values), pa.int8()))
    assert schema.with_expiry(deleted, table, 123)[EXPIRES].null_count == len(values)
    assert schema.latest_event_ms(deleted, table.ttl) is None


@scaled(30)
@given(
    st.integers(40, 80),
    st.lists(st.dictionaries(st.integers(0, 99), st.integers(0, 9) | st.none(), min_size=1, max_size=9), max_size=3),
    st.sampled_from([Ttl(100), Ttl(0)]),
    st.booleans(),
)
def test_rows_from_before_and_after_a_ttl_was_added_are_merged(
    tmp_path_factory: pytest.TempPathFactory,
    before: int,
    after: list[dict[int, int | None]],
    lifetime_of: Ttl,
    cached: bool,
) -> None:
    # Most slices have no row that came after, and an output has rows of many slices.
    with pytest.MonkeyPatch.context() as patch, closing(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)) as cache:
        patch.setattr("slackwater.store.compaction.merge._SLICE_ROWS", 4)
        patch.setattr("slackwater.store.compaction.merge._INTERVALS_PER_SST", 1 << 10)
        memory = MemoryStore()
        old = replace(TABLE, key=(Column("k", "int64"),), ttl=None)
        new = replace(old, ttl=lifetime_of)
        steps = [(old, {k: k for k in range(before)}), *((new, changes) for changes in after)]
        ssts: tuple[Sst, ...] = ()
        model: dict[int, tuple[int, int | None]] = {}
        for seq, (table, changes) in enumerate(steps, start=1):
            rows: dict[Key, Values | None] = {(k,): None if v is None else (v,) for k, v in changes.items()}
            ssts = (*write_version(memory, cache if cached else None, table, rows, seq, clock_ms=7), *ssts)
            for k, v in changes.items():
                model.pop(k, None)
                if v is not None:
                    model[k] = (v, 107 if table.ttl == Ttl(100) else None)
        one = Compaction(0, 1, ssts, drops_tombstones=True, clock_ms=7)
        (made,) = run_compaction(memory, cache, "app", "stage", new, one).outputs
        found = cache.open(memory, made, new).stored
        assert {row["k"]: (row["v"], row[EXPIRES]) for row in found.to_pylist()} == model
        assert (made.rows, made.expiring) == (len(model), sum(expires is not None for _, expires in model.values()))


def test_rows_written_while_the_ttl_is_off_never_expire() -> None:
    off = replace(TABLE, ttl=Ttl(0))
    rows = pa.table({"v": [1], "_op": pa.array([0], pa.int8())})
    assert schema.with_expiry(rows, off, 5)[EXPIRES].to_pylist() == [None]
    assert schema.with_expiry(rows, FOR_EVER, 5) == rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7 days", 7 * DAY_MS), ("1 day 12 hours", 129_600_000), ("36h", 129_600_000), ("2W", 14 * DAY_MS), ("5 ms", 5)],
)
def test_a_ttl_may_be_given_in_readable_form(text: str, expected: int) -> None:
    assert table(ttl=text).ttl == Ttl(expected)


@pytest.mark.parametrize("text", ["", "7", "days", "-1 day", "0 days", "7 months", "1000001 days", "7days!"])
def test_an_invalid_time_to_live_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="ttl"):
        table(ttl=text)


def test_a_ttl_may_be_turned_on_and_off_but_not_get_another_clock() -> None:
    week, month = Ttl(7 * DAY_MS, "at"), Ttl(30 * DAY_MS, "at")
    assert ttl.reconcile_ttl("s", None, week) == week
    assert ttl.reconcile_ttl("s", week, month) == month
    assert ttl.reconcile_ttl("s", week, None) == Ttl(0, "at")
    assert ttl.reconcile_ttl("s", Ttl(0, "at"), week) == week
    assert ttl.reconcile_ttl("s", None, None) is None
    for stored in (week, Ttl(0, "at")):
        with pytest.raises(Refused, match="write time, but stored rows by column 'at'"):
            ttl.reconcile_ttl("s", stored, Ttl(5))


def test_the_column_of_a_ttl_must_be_a_time_among_the_values() -> None:
    values = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64()), ("_at", pa.timestamp("us"))])
    for fits in (Ttl(5, "at"), Ttl(5), None):
        check_ttl("s", fits, values)
    with pytest.raises(Usage, match="'n' is int64; expected a timestamp or a date"):
        check_ttl("s", Ttl(5, "n"), values)
    for missing in ("_at", "when"):
        with pytest.raises(NotFound, match="value column"):
            check_ttl("s", Ttl(5, missing), values)


def test_a_stage_declares_its_ttl_and_contradictions_are_refused() -> None:
    app = App("a")
    weekly = table(ttl="7 days", ttl_by="at")
    app.stage(reads=topic("t"), key="k", state=upsert(by="at"), table=weekly, name="s")(lambda frame: frame)
    assert app.stages["s"].table.ttl == Ttl(7 * DAY_MS, "at")
    with pytest.raises(Usage, match="ttl is missing"):
        table(ttl_by="at")
    with pytest.raises(Usage, match="has table=, but no state="):
        app.stage(reads=topic("t"), table=weekly, name="no-state")(lambda frame: frame)
