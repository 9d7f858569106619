"""Commits to Delta and Iceberg tables: one for each version, which the table's history names."""

import datetime as dt
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.pipeline.kafka.protocol import TransactionFailed
from slackwater.pipeline.publish.tables.protocol import SinkState, has_key_of, newest_by_key

from tests.pipeline.publish.tables.lakes import Lake, Writer, by_duckdb


def sorted_rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=repr)


def test_each_version_is_a_commit_that_names_it(lake: Lake) -> None:
    writer = Writer(lake)
    assert writer.table.load("app/stage/out", "first") == SinkState(0, has_commits=False)
    for version in (2, 3, 7):
        writer.publish(version, n=[version, version * 10])
    commits = [commit for commit in writer.table.log() if commit.mark]
    assert [commit.mark for commit in commits] == [writer.mark(version) for version in (2, 3, 7)]
    for number, commit in enumerate(commits):
        then = [n for version in (2, 3, 7)[: number + 1] for n in (version, version * 10)]
        assert sorted(lake.read(snapshot=commit.snapshot)["n"].to_pylist()) == sorted(then)
    assert sorted(by_duckdb(lake)["n"].to_pylist()) == [2, 3, 7, 20, 30, 70]
    again = Writer(lake)
    assert again.table.load("app/stage/out", "first") == SinkState(7, has_commits=True)
    assert again.table.load("app/stage/out", "second") == SinkState(0, has_commits=True)
    assert again.table.load("app/stage/other", "first") == SinkState(0, has_commits=False)


def test_one_of_two_publishers_of_a_version_fails(lake: Lake) -> None:
    one, other = Writer(lake), Writer(lake)
    one.publish(2, n=[2])
    with pytest.raises(TransactionFailed):
        other.publish(2, n=[2])
    other.table.load("app/stage/out", "first")
    other.publish(3, n=[3])
    with pytest.raises(TransactionFailed, match="another commit came first"):
        one.publish(3, n=[3])
    assert sorted(lake.read()["n"].to_pylist()) == [2, 3]


def test_a_period_that_begins_makes_commits_of_earlier_ones_fail(lake: Lake) -> None:
    old = Writer(lake)
    old.publish(2, n=[2])
    new = Writer(lake, "second")
    new.table.begin(new.mark(5), None)
    with pytest.raises(TransactionFailed):
        old.publish(3, n=[3])
    new.publish(6, n=[6])
    assert sorted(lake.read()["n"].to_pylist()) == [2, 6]
    assert Writer(lake, "second").table.load("app/stage/out", "second").version == 6


@pytest.mark.parametrize("key", [None, "n"])
def test_a_publisher_that_merges_files_does_not_pass_its_fence(lake: Lake, key: str | None) -> None:
    zombie = Writer(lake, key=key)
    for version in range(2, 8):
        zombie.publish(version, n=[version])
    Writer(lake, key=key).publish(8, n=[8])
    with suppress(TransactionFailed):
        zombie.table.compact(1)
    with pytest.raises(TransactionFailed):
        zombie.publish(8, n=[8])
    assert sorted(lake.read()["n"].to_pylist()) == list(range(2, 9))
    alone = Writer(lake, key=key)
    alone.publish(9, n=[9])
    alone.table.compact(1)
    alone.publish(10, n=[10])
    assert sorted(lake.read()["n"].to_pylist()) == list(range(2, 11))


Keys = st.sampled_from([None, "a", "b", "é"])
Rows = st.lists(st.tuples(Keys, st.sampled_from([None, 0, 1, -5]), st.integers(0, 99)), max_size=6)


@given(Rows, Rows, st.sampled_from([["k"], ["n"], ["k", "n"]]))
def test_rows_with_keys_of_others_are_those_of_a_set_in_python(
    rows: list[tuple[str | None, int | None, int]], others: list[tuple[str | None, int | None, int]], key: list[str]
) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.int64())])

    def table(values: list[tuple[str | None, int | None, int]]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)

    mine, yours = table(rows), table(others)
    keys = {tuple(row[name] for name in key) for row in yours.to_pylist()}
    found = has_key_of(mine, yours, key).tolist()
    assert found == [tuple(row[name] for name in key) in keys for row in mine.to_pylist()]
    last = {tuple(row[name] for name in key): number for number, row in enumerate(mine.to_pylist())}
    assert newest_by_key(mine, key).to_pylist() == [mine.to_pylist()[number] for number in sorted(last.values())]


@pytest.mark.parametrize("key", [["k"], ["k", "day"]])
def test_an_upsert_replaces_the_rows_of_its_keys(lake: Lake, key: list[str]) -> None:
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    versions = {
        2: {"k": ["a", "b", None], "day": [days[0], days[0], None], "n": [1, 2, 3]},
        3: {"k": ["b", "b", "c"], "day": [days[1], days[0], days[0]], "n": [4, 5, 6]},
        4: {"k": [None, "a", "a"], "day": [None, days[1], days[1]], "n": [7, 8, 9]},
    }
    writer = Writer(lake, key=key)
    expected: dict[tuple[object, ...], dict[str, object]] = {}
    for version, columns in versions.items():
        rows = pa.table(columns)
        writer.table.publish(writer.mark(version), rows)
        expected |= {tuple(row[name] for name in key): row for row in rows.to_pylist()}
        assert sorted_rows(lake.read()) == sorted(expected.values(), key=repr)
    assert sorted_rows(by_duckdb(lake)) == sorted(expected.values(), key=repr)
    assert [commit.mark.version for commit in writer.table.log() if commit.mark] == [2, 3, 4]


@pytest.mark.parametrize(
    "values",
    [["a", None], [dt.date(2026, 1, 1), None], [Decimal("1.25"), None], [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]],
)
def test_a_key_column_may_be_a_partition_column_with_nulls(lake: Lake, values: list[object]) -> None:
    writer = Writer(lake, key="p", partition_by="p")
    for version in (2, 3):
        writer.publish(version, p=values, n=[version, version * 10])
    writer.publish(4, p=values[:1], n=[4])
    rows = [(row["p"], row["n"]) for row in lake.read().to_pylist()]
    assert sorted(rows, key=repr) == sorted([(values[0], 4), (None, 30)], key=repr)
    writer.publish(5, p=pa.array([None], pa.table({"p": values})["p"].type), n=[5])
    assert sorted(lake.read()["n"].to_pylist()) == [4, 5]


def test_a_column_that_a_rewind_removed_may_come_with_another_type(lake: Lake) -> None:
    writer = Writer(lake)
    writer.publish(2, n=[1])
    writer.publish(3, n=[2], more=["x"])
    snapshot = next(commit.snapshot for commit in writer.table.log() if commit.mark == writer.mark(2))
    again = Writer(lake, "second")
    again.table.begin(again.mark(4), snapshot)
    again.publish(5, n=[3], more=[5])
    assert sorted_rows(lake.read()) == [{"n": 1, "more": None}, {"n": 3, "more": 5}]


@pytest.mark.parametrize("key", [None, "n"])
def test_columns_may_be_added_and_left_out(lake: Lake, key: str | None) -> None:
    writer = Writer(lake, key=key)
    writer.publish(2, n=[1])
    writer.publish(3, n=[2], more=["x"])
    writer.publish(4, n=[3])
    expected = [{"n": 1, "more": None}, {"n": 2, "more": "x"}, {"n": 3, "more": None}]
    assert sorted_rows(lake.read()) == sorted(expected, key=repr)


def test_fields_of_structs_may_be_added(lake: Lake) -> None:
    writer = Writer(lake)
    writer.publish(2, s=[{"a": 1}])
    writer.publish(3, s=[{"a": 2, "b": "x"}])
    assert sorted_rows(lake.read()) == [{"s": {"a": 1, "b": None}}, {"s": {"a": 2, "b": "x"}}]


def test_a_column_of_another_type_is_refused(lake: Lake) -> None:
    writer = Writer(lake)
    writer.publish(2, n=[1])
    with pytest.raises(TransactionFailed) as failed:
        writer.publish(3, n=["one"])
    assert isinstance(failed.value.error, Refused)
    assert "out: " in failed.value.error.message
    assert lake.read()["n"].to_pylist() == [1]


CHANGED: list[tuple[pa.Array, pa.Array]] = [
    (pa.array([1], pa.int32()), pa.array([1.7])),
    (pa.array([1], pa.int32()), pa.array(["7"])),
    (pa.array(["a"]), pa.array([5])),
    (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), pa.array([1.999])),
    (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), pa.array([Decimal("1.256")], pa.decimal128(10, 3))),
    (pa.array([[{"a": 1}]]), pa.array([[{"a": 1.7}]])),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.array([[("k", 1.7)]], pa.map_("string", "double"))),
]


@pytest.mark.parametrize(("stored", "changed"), CHANGED)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_column_of_another_type_is_not_cast(lake: Lake, key: str | None, stored: pa.Array, changed: pa.Array) -> None:
    writer = Writer(lake, key=key)
    writer.publish(2, k=[1], x=stored)
    with pytest.raises(TransactionFailed) as failed:
        writer.publish(3, k=[1], x=changed)
    assert isinstance(failed.value.error, Refused)
    assert lake.read()["x"].to_pylist() == stored.to_pylist()


@pytest.mark.parametrize("key", [None, "k"])
def test_numbers_fit_into_a_wider_column(lake: Lake, key: str | None) -> None:
    writer = Writer(lake, key=key)
    writer.publish(2, k=[1], n=[1 << 40], f=[0.1])
    writer.publish(3, k=pa.array([2], pa.int8()), n=pa.array([7], pa.int32()), f=pa.array([1.5], pa.float32()))
    assert sorted_rows(lake.read()) == [{"k": 1, "n": 1 << 40, "f": 0.1}, {"k": 2, "n": 7, "f": 1.5}]


def test_wider_floats_never_become_infinite(lake: Lake) -> None:
    writer = Writer(lake)
    writer.publish(2, f=pa.array([1.5], pa.float32()))
    with suppress(TransactionFailed):  # Iceberg widens the column
        writer.publish(3, f=[1e300])
    assert set(lake.read()["f"].to_pylist()) <= {1.5, 1e300}


@pytest.mark.parametrize("key", [None, "k"])
def test_columns_and_fields_that_rows_do_not_have_are_null(lake: Lake, key: str | None) -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])))
    less = pa.map_(pa.string(), pa.list_(pa.struct([("b", pa.int32())])))
    writer = Writer(lake, key=key)
    writer.publish(2, k=[1], x=["old"], s=[{"a": 1, "b": 2}], m=pa.array([[("q", [{"a": 1, "b": 1}])]], kind))
    writer.publish(3, s=[{"b": 3}], k=[1], m=pa.array([[("q", [{"b": 5}])]], less))
    rows = [row for row in lake.read().to_pylist() if row["x"] is None]
    assert rows == [{"k": 1, "x": None, "s": {"a": None, "b": 3}, "m": [("q", [{"a": None, "b": 5}])]}]
    assert lake.read().num_rows == (1 if key else 2)


LOCAL = dt.datetime.fromisoformat("2026-01-01T12:00:00")


@pytest.mark.parametrize("value", [LOCAL, {"at": LOCAL}, [("at", LOCAL)]])
@pytest.mark.parametrize("key", [None, "n"])
@pytest.mark.parametrize("is_new", [True, False])
def test_local_times_may_be_in_any_column(lake: Lake, key: str | None, value: object, is_new: bool) -> None:
    writer = Writer(lake, key=key)
    column = pa.array([value], pa.map_(pa.string(), pa.timestamp("us")) if isinstance(value, list) else None)
    if not is_new:
        writer.publish(2, n=[1])
    writer.publish(3, n=[2], s=column)
    writer.publish(4, n=[3], s=column)
    rows = {row["n"]: row["s"] for row in lake.read().to_pylist()}
    assert rows == {2: value, 3: value} | ({} if is_new else {1: None})
    assert not [commit for commit in writer.table.log() if commit.changes_rows and not commit.mark]


def test_every_type_of_spark_is_stored(lake: Lake) -> None:
    moment = dt.datetime(2026, 1, 1, 12, 0, 0, 123456, dt.UTC)
    rows = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()),
            "i16": pa.array([1, None], pa.int16()),
            "i32": pa.array([1, None], pa.int32()),
            "i64": pa.array([1, None], pa.int64()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": pa.array([1.5, None], pa.float64()),
            "text": pa.array(["ä", None]),
            "bytes": pa.array([b"\x00\xff", None]),
            "yes": pa.array([True, None]),
            "day": pa.array([dt.date(2026, 1, 1), None]),
            "at": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
            "list": pa.array([[1, 2], None], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])),
            "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    writer = Writer(lake)
    writer.table.publish(writer.mark(2), rows)
    assert sorted_rows(lake.read().select(rows.column_names)) == sorted_rows(rows)


STRUCT = pa.struct([("a", pa.int64())])
NESTED: list[tuple[pa.DataType, object]] = [
    (pa.list_(STRUCT), [{"a": 1}]),
    (pa.map_(pa.string(), STRUCT), [("x", {"a": 1})]),
    (pa.list_(pa.list_(STRUCT)), [None, [], [{"a": 1}, None]]),
    (
        pa.struct([("l", pa.list_(STRUCT)), ("m", pa.map_(pa.string(), pa.list_(STRUCT)))]),
        {"l": None, "m": [("x", None)]},
    ),
]


@pytest.mark.parametrize(("kind", "value"), NESTED)
@pytest.mark.parametrize("key", [None, "k"])
def test_null_lists_and_maps_stay_null(lake: Lake, key: str | None, kind: pa.DataType, value: object) -> None:
    writer = Writer(lake, key=key)
    written = pa.array([value, None, [] if not pa.types.is_struct(kind) else None, value], kind)
    writer.publish(2, k=[1, 2, 3, 4], x=written)
    writer.publish(3, k=[5], x=pa.array([None], kind))
    writer.publish(4, k=[6], x=written.slice(1, 1))
    for file in lake.files():  # as another reader sees it
        for row in pq.read_table(file).to_pylist():
            assert row["x"] == dict(enumerate(written.to_pylist(), 1)).get(row["k"])
    assert {row["k"]: row["x"] for row in lake.read().to_pylist()} == {
        **dict(enumerate(written.to_pylist(), 1)),
        5: None,
        6: None,
    }


def test_a_new_table_is_partitioned(lake: Lake) -> None:
    writer = Writer(lake, partition_by="country")
    writer.publish(2, country=["ch", "at", "ch"], n=[1, 2, 3])
    assert len(lake.files()) == 2
    assert all("country=" in file for file in lake.files())
    assert sorted(lake.read()["n"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("partition_by", [None, "n"])
def test_small_files_are_merged(lake: Lake, partition_by: str | None) -> None:
    writer = Writer(lake, partition_by=partition_by)
    for version in range(2, 8):
        writer.publish(version, n=[1], m=[version])
    writer.table.compact(6)
    assert len(lake.files()) == 6
    writer.table.compact(5)
    assert len(lake.files()) == 1
    assert sorted(lake.read()["m"].to_pylist()) == list(range(2, 8))
    assert not writer.table.log()[-1].changes_rows
    writer.table.load("app/stage/out", "first")
    writer.publish(99, n=[1], m=[99])
    assert len(lake.files()) == 2
