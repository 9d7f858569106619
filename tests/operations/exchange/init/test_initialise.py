"""A table that is created from imported rows has exactly these rows, or does not exist."""

from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Refused, SlackwaterError, Usage
from slackwater.operations.exchange import initialise as loading
from slackwater.operations.exchange.initialise import initialise
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.query.row_source import RowSource
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.schema import arrow_schema
from slackwater.store.sst.sorted_runs import max_l0_files, sorted_runs
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Column, Input, Manifest, Table, Ttl

from tests.crash.points import killed_at_each_call
from tests.models.profiles import scaled
from tests.support.collecting import AgingStore, keys_of
from tests.support.manifests import claim

TABLE = Table((Column("carrier", "string"),), (Column("flights", "int64"), Column("delay", "double")), 4)
FIRST = Manifest(
    "flights", "carriers", 1, 1, "w", 1, "init", inputs={"t": Input("t", (3, 4))}, table=TABLE, by="ada@host"
)
ROWS = pa.table({"carrier": [f"C{n}" for n in range(500)], "flights": range(500), "delay": [n / 8 for n in range(500)]})


def file_of(rows: pa.Table, folder: Path) -> RowSource:
    path = folder / "rows.parquet"
    pq.write_table(rows, path)
    return RowSource(str(path))


def stored(store: ObjectStore, stage: str = "carriers") -> list[dict[str, Any]]:
    """Return the table's rows by key, read with a plain Parquet reader."""
    head = history.head(store, "flights", stage)
    assert head is not None
    parts = [pq.read_table(pa.BufferReader(store.get(sst.object))) for sst in head.ssts]
    return sorted((row for part in parts for row in part.to_pylist()), key=str)


def sound(store: ObjectStore) -> bool:
    return verify(store, "flights", now_ms=1 << 42, deep=True).differences == ()


def test_rows_become_version_1_and_a_claim_continues_from_it(tmp_path: Path) -> None:
    store = MemoryStore()
    done = initialise(store, FIRST, file_of(ROWS, tmp_path))
    assert (done.version, done.rows, done.ssts, done.offsets, done.already) == (1, 500, 4, {"t": (3, 4)}, False)
    head = history.head(store, "flights", "carriers")
    assert head is not None
    assert (head.version, head.kind, head.inputs, head.epoch) == (1, "init", FIRST.inputs, 1)
    assert {(row["carrier"], row["flights"], row["delay"], row["_seq"], row["_op"]) for row in stored(store)} == {
        (f"C{n}", n, n / 8, 1, 0) for n in range(500)
    }
    next_one = claim(store, "flights", "carriers", writer="r", by="r", now_ms=2)
    assert (next_one.version, next_one.epoch, next_one.ssts) == (2, 2, head.ssts)
    assert sound(store)
    assert [(each.verb, each.detail) for each in list_operations(store, "flights")] == [
        ("init", "carriers v1: 500 rows")
    ]


KEYS = st.one_of(
    st.just(("string", st.text(max_size=5))),
    st.just(("int32", st.integers(-(2**31), 2**31 - 1))),
    st.just(("int64", st.integers(-(2**63), 2**63 - 1))),
    st.just(("double", st.floats(allow_nan=False).map(lambda number: number + 0.0))),
    st.just(("bool", st.booleans())),
    st.just(("date32", st.dates())),
    st.just(("binary", st.binary(max_size=4))),
)
VALUES = st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=2)


@given(data=st.data(), partitions=st.integers(1, 9), slots=st.integers(0, 3))
@scaled(8)
def test_the_table_has_the_rows_whatever_they_are(
    data: st.DataObject, partitions: int, slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, values = data.draw(KEYS)
    keys = data.draw(st.lists(values, min_size=1, max_size=40, unique=True))
    table = Table(
        (Column("k", kind), Column("n", "int32")),
        (Column("v", "list<int64>"),),
        partitions,
    )
    wanted = {(key, number % 3): data.draw(VALUES) for number, key in enumerate(keys)}
    schema = arrow_schema((*table.key, *table.values))
    rows = pa.Table.from_pylist([{"k": k, "n": n, "v": v} for (k, n), v in wanted.items()], schema=schema)
    store = MemoryStore()
    source = file_of(rows, tmp_path_factory.mktemp("rows"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "count_slots", lambda _table, _bytes: partitions << slots)
        initialise(store, replace(FIRST, table=table), source)
        assert initialise(store, replace(FIRST, table=table), source).already
    assert {(row["k"], row["n"]): row["v"] for row in stored(store)} == wanted
    head = history.head(store, "flights", "carriers")
    assert head is not None
    # One run, which needs no merge and causes no stall.
    assert all(len(sorted_runs(sst for sst in head.ssts if sst.partition == p)) <= 1 for p in range(partitions))
    assert max_l0_files(head.ssts, partitions) == 0
    assert sound(store)


REFUSALS: list[tuple[str, str]] = [
    (
        "SELECT NULL AS carrier, 1 AS flights, 0.5 AS delay",
        r"rows without a key: 'carrier' is null in 1 of 1 checked rows, such as .carrier=None, flights=1",
    ),
    (
        "SELECT 'C' || n % 7 AS carrier, n AS flights, 0.5 AS delay FROM range(10) r(n)",
        "3 rows of the query repeat the key of another row: expected one row for each key; repeated keys",
    ),
    ("SELECT 'A' AS carrier, 1 AS flights", "it has no column 'delay'"),
    (
        "SELECT 'A' AS carrier, 1 AS flights, 2 AS delays",
        "no column 'delay' .the nearest is 'delays'.; the table has no column 'delays'",
    ),
    ("SELECT 'A' AS carrier, 1 AS flights, 2 AS delay, 3 AS rest", "the table has no column 'rest'"),
    ("SELECT 7 AS carrier, 1 AS flights, 2 AS delay", "its column 'carrier' is int32, but the table has string"),
    (
        "SELECT 'A' AS carrier, '1' AS flights, 2 AS delay",
        "its column 'flights' is .*string.*, but the table has int64",
    ),
    (
        "SELECT 'A' AS carrier, 1.5 AS flights, 2 AS delay",
        "column 'flights' of the query has a value that is not a valid int64",
    ),
    ("SELECT 'A' AS carrier, 1 AS flights, 2 AS delay WHERE false", "the query has no rows"),
    (
        "SELECT 'A' AS carrier, error('no such plane') AS flights, 2 AS delay",
        "the query cannot be read: .*no such plane",
    ),
    ("SELECT nothing", "the query cannot be read: .*nothing"),
]


@pytest.mark.parametrize(("sql", "said"), REFUSALS, ids=[said for _, said in REFUSALS])
def test_rows_that_do_not_fit_are_refused_with_one_sentence_and_leave_nothing(sql: str, said: str) -> None:
    store = MemoryStore()
    with pytest.raises(Refused, match=said) as refused:
        initialise(store, FIRST, RowSource(sql=sql))
    assert "\n" not in refused.value.sentence
    assert keys_of(store) == set()


def test_a_duplicate_key_is_reported_with_examples_and_written_objects_are_deleted(tmp_path: Path) -> None:
    store, twice = AgingStore(), pa.concat_tables([ROWS, ROWS.slice(0, 40)])
    puts: list[str] = []
    store.before = lambda verb, key: puts.append(key) if verb == "put" else None
    small = replace(TABLE, partitions=64)
    with pytest.raises(Refused, match=r"40 rows of .*rows.parquet repeat the key of another row.* keys: .carrier='C"):
        initialise(store, replace(FIRST, table=small), file_of(twice, tmp_path))
    assert keys_of(store) == set()


def test_values_are_converted_if_nothing_is_lost() -> None:
    store = MemoryStore()
    sql = "SELECT 'A'::VARCHAR AS carrier, 7::HUGEINT AS flights, 1.25::DECIMAL(9, 2) AS delay"
    initialise(store, FIRST, RowSource(sql=sql))
    (row,) = stored(store)
    assert (row["carrier"], row["flights"], row["delay"]) == ("A", 7, 1.25)


def test_csv_is_read_and_statements_before_the_query_are_run(tmp_path: Path) -> None:
    file = tmp_path / "it's.csv"
    file.write_text("carrier,flights,delay\nA,1,0.5\nB,2,\n", encoding="utf-8")
    by_file, by_sql = MemoryStore(), MemoryStore()
    initialise(by_file, FIRST, RowSource(str(file)))
    quoted = str(file).replace("'", "''")
    initialise(by_sql, FIRST, RowSource(sql=f"CREATE TABLE t AS FROM '{quoted}'; SELECT * FROM t -- all; of them"))
    assert stored(by_file) == stored(by_sql)
    assert [row["delay"] for row in stored(by_file)].count(None) == 1
    with pytest.raises(Usage, match="returns no rows"):
        initialise(MemoryStore(), FIRST, RowSource(sql="CREATE TABLE t (a int)"))
    with pytest.raises(Usage, match="both a file and --sql"):
        RowSource("rows.parquet", "SELECT 1")
    with pytest.raises(Refused, match=r"nowhere.parquet cannot be read"):
        initialise(MemoryStore(), FIRST, RowSource("nowhere.parquet"))


def test_a_dry_run_checks_everything_and_changes_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    would = initialise(store, FIRST, file_of(ROWS, tmp_path), dry_run=True)
    assert keys_of(store) == set()
    assert initialise(store, FIRST, file_of(ROWS, tmp_path)) == would
    with pytest.raises(Refused, match="without a key"):
        initialise(store, replace(FIRST, stage="other"), RowSource(sql=REFUSALS[0][0]), dry_run=True)


def test_a_stage_that_already_has_versions_is_refused(tmp_path: Path) -> None:
    store, source = MemoryStore(), file_of(ROWS, tmp_path)
    initialise(store, FIRST, source)
    before = keys_of(store)
    with pytest.raises(Refused, match=r"v1 by `slackwater init` of .*, by ada@host, with other rows"):
        initialise(store, FIRST, file_of(ROWS.slice(1), tmp_path))
    elsewhere = replace(FIRST, inputs={"t": Input("t", (3, 5))})
    with pytest.raises(Refused, match=r"with the same rows but at offsets {'t': .3, 4.} instead of {'t': .3, 5.}"):
        initialise(store, elsewhere, file_of(ROWS, tmp_path))
    with pytest.raises(Refused, match="whose table is not the one"):
        initialise(store, replace(FIRST, table=replace(TABLE, partitions=2)), source)
    assert keys_of(store) == before
    claim(store, "flights", "carriers", writer="r", by="r", now_ms=2)
    with pytest.raises(Refused, match="carriers: it already has versions, up to v2, a claim by r"):
        initialise(store, FIRST, source)
    # Another stage of the app begins as it likes.
    initialise(store, replace(FIRST, stage="aircraft"), source)
    assert stored(store, "aircraft") == stored(store, "carriers")


def test_one_of_two_concurrent_imports_wins_and_the_other_leaves_nothing(tmp_path: Path) -> None:
    store, source = AgingStore(), file_of(ROWS, tmp_path)
    mine = file_of(ROWS.slice(7), tmp_path)
    other = tmp_path / "other.parquet"
    pq.write_table(ROWS, other)
    store.once(
        "put_if_absent", "manifests", lambda: initialise(store, replace(FIRST, writer="x"), RowSource(str(other)))
    )
    with pytest.raises(Refused, match=r"it already has versions, .* was committed first by ada@host"):
        initialise(store, FIRST, mine)
    assert len(stored(store)) == 500
    head = history.head(store, "flights", "carriers")
    assert head is not None
    assert {key for key in keys_of(store) if "/sst/" in key} == {sst.object for sst in head.ssts}
    assert source == mine


def test_a_killed_import_is_invisible_until_the_same_call_finishes_it(tmp_path: Path) -> None:
    first, source = replace(FIRST, table=replace(TABLE, partitions=24)), file_of(ROWS, tmp_path)
    expected = None
    begun = partial(initialise, first=first, source=source)
    for store, _ in killed_at_each_call("init", AgingStore, begun, lambda store: store):
        expected = expected or stored(store)
        head = history.head(store, "flights", "carriers")
        assert head is None or stored(store) == expected
        again = begun(store)
        assert again.already == (head is not None)
        assert stored(store) == expected
        assert len(list_operations(store, "flights")) == 1
        assert sound(store)


def test_imported_rows_expire_by_the_tables_ttl_and_set_its_clock(tmp_path: Path) -> None:
    at = [1_000_000, 2_000_000, 9_000_000]
    rows = pa.table({"k": ["a", "b", "c"], "at": pa.array([ms * 1000 for ms in at], pa.timestamp("us", "UTC"))})
    columns = (Column("at", "timestamp[us, tz=UTC]"),)
    by_event = Table((Column("k", "string"),), columns, 1, ttl=Ttl(5_000_000, "at"))
    store = MemoryStore()
    initialise(store, replace(FIRST, table=by_event), file_of(rows, tmp_path))
    head = history.head(store, "flights", "carriers")
    assert head is not None
    assert head.clock_ms == 9_000_000
    assert {row["k"]: row["_expires_at"] for row in stored(store)} == {"a": 6_000_000, "b": 7_000_000, "c": 14_000_000}
    by_write = replace(by_event, ttl=Ttl(5_000_000))
    initialise(store, replace(FIRST, stage="later", table=by_write), file_of(rows, tmp_path))
    head = history.head(store, "flights", "later")
    assert head is not None
    assert {row["_expires_at"] for row in stored(store, "later")} == {head.clock_ms + 5_000_000}
    assert initialise(store, replace(FIRST, stage="later", table=by_write), file_of(rows, tmp_path)).already


def test_moments_and_histories_begin_with_the_import(tmp_path: Path) -> None:
    store = MemoryStore()
    initialise(store, FIRST, file_of(ROWS, tmp_path))
    cut = resolve(store, "flights@~0", now_ms=1 << 42)
    assert cut.versions == {"carriers": 1}
    cache = SstCache(tmp_path / "cache", 1 << 20)
    found = key_history(store, cache, "flights", "carriers", ("C7",), limit=0, now_ms=1 << 42)
    assert [(change.version, change.kind) for change in found.changes] == [(1, "added")]


def test_rows_beyond_the_sort_memory_spill_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.operations.exchange.initialise.SORT_MEMORY", "48 MiB")
    monkeypatch.setattr(loading, "_MAX_WORKERS", 1)
    path = tmp_path / "many.parquet"
    sql = f"COPY (SELECT 'C' || n AS carrier, n AS flights, n / 2 AS delay FROM range(1000000) r(n)) TO '{path}'"
    with duckdb.connect() as con:
        con.execute(sql)
    store = MemoryStore()
    assert initialise(store, FIRST, RowSource(str(path))).rows == 1_000_000
    monkeypatch.setattr("slackwater.operations.exchange.initialise.SORT_MEMORY", "1 MiB")
    with pytest.raises(SlackwaterError, match="cannot be sorted"):
        initialise(store, replace(FIRST, stage="other"), RowSource(str(path)))
