"""A table is read as by Spark's tasks, but without Spark: for any columns and keys, the rows equal those of `query`."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, In
from pyspark.sql.types import LongType, StringType, StructField, StructType
from slackwater import errors
from slackwater.client import Client
from slackwater.pipeline.spark.table_reader import (
    FilteringReader,
    StoreLocation,
    TableReader,
    VersionedTable,
    filtered_keys,
    visible_columns,
)
from slackwater.settings import Settings
from slackwater.spark import SparkSource
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.versions.manifest import Column, Table

from tests.support.collecting import fresh, gc, old_app, store_of
from tests.support.histories import START_MS, Clock, FlightsApp, Kafka, flights


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app whose table has overwritten and deleted rows, a merge, and a rescale to more state partitions."""
    made = FlightsApp(LocalStore(tmp_path_factory.mktemp("read") / "store"), Kafka(), clock=Clock(START_MS))
    made.run(flights(60, aircraft=40))
    made.delete("aircraft", "N001", "N003")
    made.compact("aircraft")
    made.rescale("aircraft", 4)
    made.run(flights(60, aircraft=50))
    made.delete("aircraft", "N002")
    return made


@pytest.fixture
def client(app: FlightsApp, tmp_path: Path) -> Client:
    return Client(Settings(store=app.store.url, cache=str(tmp_path / "cache"), cache_max_bytes=1 << 20))


def source(app: FlightsApp, path: str = "flights/aircraft", **options: str) -> SparkSource:
    """Return the data source as it is after Spark has created and pickled it."""
    made = SparkSource({"path": path, "store": app.store.url, **options})
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]  # noqa: S301  our own


def rows_of(reader: TableReader) -> list[tuple[Any, ...]]:
    return rows_here(pickle.loads(pickle.dumps(reader)))  # noqa: S301  our own


def rows_here(reader: TableReader) -> list[tuple[Any, ...]]:
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(tuple(row.values()) for batch in found for row in batch.to_pylist())


@pytest.mark.parametrize("at", ["", "now", "~1", "2025-01-01T00:00:05Z"])
def test_all_rows_of_a_moment_equal_those_of_a_query(app: FlightsApp, client: Client, at: str) -> None:
    made = source(app, at=at) if at else source(app)
    expected = client.app("flights").at(at or "now").query("FROM aircraft").fetchall()
    assert expected
    assert rows_of(made.reader(made.schema())) == sorted(expected)
    assert made.schema().simpleString() == "struct<tail:string,flights:bigint,delay:bigint>"


def test_a_table_can_be_read_at_a_version_of_its_stage(app: FlightsApp, client: Client) -> None:
    made = source(app, version="v3")
    expected = client.app("flights").at("v3", stage="aircraft").query("FROM aircraft").fetchall()
    assert rows_of(made.reader(made.schema())) == sorted(expected)


def test_there_is_one_task_per_state_partition_and_only_requested_columns_are_returned(app: FlightsApp) -> None:
    made = source(app)
    reader = made.reader(StructType([StructField("delay", LongType())]))
    assert len(reader.partitions()) == 4
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert {name for batch in batches for name in batch.schema.names} == {"delay"}
    both = rows_of(made.reader(made.schema()))
    assert rows_of(reader) == sorted((delay,) for _, _, delay in both)


def filtering(app: FlightsApp, *filters: Filter) -> FilteringReader:
    made = source(app)
    reader = FilteringReader(made._table, made.schema())
    # Spark filters once more.
    assert [*reader.pushFilters([*filters])] == [*filters]
    return reader


def test_filters_on_the_key_read_only_the_partitions_that_can_match(app: FlightsApp) -> None:
    whole = rows_of(filtering(app))
    for wanted in (["N005"], ["N005", "N017", "N001", "XXXX"], ["N002"]):
        reader = filtering(app, In(("tail",), tuple(wanted)), GreaterThan(("delay",), 0))
        assert len(reader.partitions()) <= len(wanted)
        assert rows_of(reader) == [row for row in whole if row[0] in wanted]
    assert rows_of(filtering(app, EqualTo(("tail",), "N005"), EqualNullSafe(("tail",), "N006"))) == []
    assert rows_of(filtering(app, GreaterThan(("tail",), "N005"))) == whole


def test_keys_are_looked_up_only_if_filters_fix_the_whole_key_with_the_same_meaning_in_spark() -> None:
    table = Table((Column("a", "int64"), Column("b", "string")), (), 1)

    def found(*filters: Filter) -> Any:
        keys = filtered_keys(table, filters)
        return None if keys is None else sorted(tuple(row.values()) for row in keys.to_pylist())

    assert found(EqualTo(("a",), 1)) is None
    assert found(EqualTo(("a",), 1), In(("b",), ("x", "y", None))) == [(1, "x"), (1, "y")]
    assert found(In(("a",), (1, 2)), In(("a",), (2, 3)), EqualTo(("b",), "x")) == [(2, "x")]
    assert found(EqualTo(("a",), 1 << 70), EqualTo(("b",), "x")) is None
    assert found(EqualTo(("a", "inside"), 1), EqualTo(("b",), "x")) is None
    assert found(In(("a",), tuple(range(200))), In(("b",), tuple(map(str, range(200))))) is None
    times = Table((Column("at", "timestamp[us, tz=UTC]"),), (), 1)
    assert filtered_keys(times, [EqualTo(("at",), None)]) is None


def test_the_error_for_a_wrong_option_names_the_valid_ones(app: FlightsApp) -> None:
    for options, error, words in (
        ({"path": "flights"}, errors.Usage, "is not a table"),
        ({"path": "flights/airports"}, errors.NotFound, "airports"),
        ({"path": "flight/aircraft"}, errors.NotFound, "flight"),
        ({"path": "flights/aircraft", "version": "last"}, errors.Usage, "is 'last'; expected a version number"),
        (
            {"path": "flights/aircraft", "version": "3", "at": "-5m"},
            errors.Usage,
            "'version' and 'at' exclude each other",
        ),
        ({"path": "flights/aircraft", "att": "-5m"}, errors.Usage, "nearest is 'at'|'att' is not an option"),
        ({"path": "flights/aircraft", "at": "2020-01-01T00:00:00Z"}, errors.NotFound, "begins at"),
    ):
        with pytest.raises(error, match=words):
            SparkSource({"store": app.store.url, **options})
    with pytest.raises(errors.NotFound, match="no table at flights/legs@v1 named 'legs'"):
        source(app, path="flights/legs", version="1").schema()
    made = source(app)
    with pytest.raises(errors.NotFound, match="weight"):
        made.reader(StructType([StructField("weight", LongType())]))
    with pytest.raises(errors.Usage, match="is bigint, not string"):
        made.reader(StructType([StructField("delay", StringType())]))


class _Here(StoreLocation):
    """A store of this process."""

    __slots__ = ("app",)

    def open(self) -> ObjectStore:
        return fresh(self.app.store)

    def with_own_access(self) -> StoreLocation:
        return self


def test_a_moment_collected_while_it_is_read_is_named(tmp_path: Path) -> None:
    app = old_app()
    place = _Here("", S3Settings())
    object.__setattr__(place, "app", app)
    at = VersionedTable(place, "flights", "carriers", 3, "carriers", 0)
    reader = TableReader(at, visible_columns(at))
    store_of(app).once("get", "/sst/", lambda: gc(app))
    with pytest.raises(
        errors.NotFound, match=r"carriers@v3 was garbage-collected while it was read: retention does not keep it"
    ):
        rows_here(reader)
    with pytest.raises(errors.NotFound, match=r"version of flights/carriers.*v3"):
        reader.partitions()
