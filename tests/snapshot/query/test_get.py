import datetime as dt
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Usage
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.columns import get, parse_key
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.models.profiles import scaled
from tests.support.histories import FlightsApp, Kafka, app_of, flights, rows_of


@pytest.fixture
def app() -> FlightsApp:
    return app_of(60)


def now(app: FlightsApp) -> Cut:
    return resolve(app.store, "flights", now_ms=app.clock.now_ms)


def test_a_key_gives_its_row_without_internal_columns(app: FlightsApp) -> None:
    number, delay, _ = app.state["carriers"]["C1"]
    assert get(app.store, now(app), "carriers", ["C1"]).to_pylist() == [
        {"carrier": "C1", "flights": number, "delay": delay}
    ]


def test_an_absent_key_gives_no_row_but_the_same_columns(app: FlightsApp) -> None:
    absent = get(app.store, now(app), "carriers", ["C9"])
    assert absent.num_rows == 0
    assert absent.schema == get(app.store, now(app), "carriers", ["C1"]).schema


def test_an_earlier_moment_gives_the_row_of_that_time(app: FlightsApp) -> None:
    then = resolve(app.store, "flights@~6", now_ms=0)
    number, delay, _ = rows_of(app.store, then.stages["carriers"])["C1"]
    assert get(app.store, then, "carriers", ["C1"]).to_pylist() == [
        {"carrier": "C1", "flights": number, "delay": delay}
    ]


def test_the_error_for_an_unknown_table_suggests_the_nearest(app: FlightsApp) -> None:
    with pytest.raises(NotFound, match="the nearest: carriers"):
        get(app.store, now(app), "carrier", ["C1"])
    with pytest.raises(NotFound, match=r"no table at .* named 'legs'"):
        get(app.store, now(app), "legs", ["C1"])


@pytest.mark.parametrize("values", [[], ["C1", "C2"]])
def test_the_error_for_a_wrong_number_of_values_names_the_key_columns(app: FlightsApp, values: list[str]) -> None:
    with pytest.raises(Usage, match=r"the key of table 'carriers' is carrier \(string\); found"):
        get(app.store, now(app), "carriers", values)


KEYS = {
    "string": ("N1", "N1"),
    "binary": ("00ff", b"\x00\xff"),
    "bool": ("true", True),
    "int8": ("-7", -7),
    "int16": ("300", 300),
    "int32": ("70000", 70000),
    "int64": ("-5000000000", -5_000_000_000),
    "float": ("1.5", 1.5),
    "double": ("-0.0", 0.0),
    "date32[day]": ("2013-01-31", dt.date(2013, 1, 31)),
    "timestamp[us]": ("2013-01-31 05:17:00.25", dt.datetime.fromisoformat("2013-01-31 05:17:00.250")),
    "timestamp[us, tz=UTC]": ("2013-01-31T05:17:00+01:00", dt.datetime(2013, 1, 31, 4, 17, tzinfo=dt.UTC)),
    "decimal128(10, 2)": ("12.5", Decimal("12.50")),
    "struct<n: int64, d: decimal128(38, 1), b: binary, in: struct<f: bool, x: double, at: timestamp[us, tz=UTC]>>": (
        '{"n": -9007199254740993, "d": 1234567890123456789012345678901234567.8, "b": "00ff", '
        '"in": {"f": true, "x": -0.0, "at": "2013-01-31T05:17:00Z"}}',
        {
            "n": -9007199254740993,
            "d": Decimal("1234567890123456789012345678901234567.8"),
            "b": b"\x00\xff",
            "in": {"f": True, "x": 0.0, "at": dt.datetime(2013, 1, 31, 5, 17, tzinfo=dt.UTC)},
        },
    ),
    "struct<a: struct<b: string>, c: string>": ('{"c": null, "a": null}', {"a": None, "c": None}),
}


def one_row(store: ObjectStore, kind: str, value: object) -> Cut:
    """Return the cut of a table with one row and a single key column of this type."""
    table = Table((Column("k", kind),), (Column("n", "int64"),), 1)
    schema = parse_key("t", table, [None]).schema
    keys = pa.table({"k": pa.array([value], schema.field("k").type)})
    rows = pa.table({"_hash": hash_keys(keys, ["k"]), "k": keys.column("k"), "n": [7], "_seq": [1], "_op": [0]})
    run = writer.write_sst(store, None, app="a", stage="t", table=table, partition=0, rows=rows)
    return Cut("a", {"t": Manifest("a", "t", 1, 1, "w", 1, "batch", table=table, ssts=(run,))})


@pytest.mark.parametrize("kind", KEYS)
def test_values_are_parsed_as_the_types_of_the_key_columns(kind: str) -> None:
    store = MemoryStore()
    text, value = KEYS[kind]
    cut = one_row(store, kind, value)
    assert get(store, cut, "t", [text]).to_pylist() == [{"k": value, "n": 7}]
    assert get(store, cut, "t", [value]).to_pylist() == [{"k": value, "n": 7}]
    assert get(store, cut, "t", [None]).num_rows == 0


def test_in_a_struct_of_json_true_is_text_for_a_string_field_and_null_is_no_struct() -> None:
    store = MemoryStore()
    cut = one_row(store, "struct<a: string, b: bool, in: struct<c: string>>", None)
    assert get(store, cut, "t", ["null"]).to_pylist() == [{"k": None, "n": 7}]
    key = {"a": "true", "b": False, "in": {"c": "false"}}
    cut = one_row(store, "struct<a: string, b: bool, in: struct<c: string>>", key)
    assert get(store, cut, "t", ['{"a": true, "b": false, "in": {"c": false}}']).to_pylist() == [{"k": key, "n": 7}]
    with pytest.raises(Usage, match="for key column 'k'"):
        get(store, cut, "t", [{**key, "a": True}])


@pytest.mark.parametrize(("kind", "key"), [("string", "\udcff"), ("struct<a: string>", '{"a": "\\udcff"}')])
def test_a_key_that_is_not_utf8_is_refused_with_that_reason(kind: str, key: str) -> None:
    """A shell passes invalid bytes as lone surrogates, and JSON may contain these, too."""
    cut = one_row(store := MemoryStore(), kind, None)
    with pytest.raises(Usage, match="for key column 'k' of table 't' is not valid UTF-8") as refused:
        get(store, cut, "t", [key])
    assert "in Python, give a key that is not UTF-8 as bytes" in refused.value.hint


def test_a_time_without_an_offset_is_utc_for_a_key_in_utc() -> None:
    store = MemoryStore()
    cut = one_row(store, "timestamp[us, tz=UTC]", dt.datetime(2013, 1, 31, tzinfo=dt.UTC))
    for text in ("2013-01-31", "2013-01-31 00:00", "2013-01-31T00:00Z", "2013-01-30T19:00:00-0500"):
        assert get(store, cut, "t", [text]).num_rows == 1, text


def test_null_is_a_valid_key() -> None:
    store = MemoryStore()
    assert get(store, one_row(store, "string", None), "t", [None]).to_pylist() == [{"k": None, "n": 7}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int64", "twelve"),
        ("int8", "300"),
        ("binary", "zz"),
        ("date32[day]", "31.1.2013"),
        ("bool", "maybe"),
        ("timestamp[us, tz=UTC]", "noon"),
        ("decimal128(4, 2)", "12345.6"),
        ("struct<a: int64>", "7"),
        ("struct<a: int64>", "{"),
        ("struct<a: int64>", "[" * 100_000),
        ("struct<a: int64>", "{}"),
        ("struct<a: int64>", '{"a": 1, "b": 2}'),
        ("struct<a: int64>", '{"a": [1]}'),
        ("struct<a: int64>", '{"a": "one"}'),
    ],
)
def test_the_error_for_text_of_another_type_names_the_column_and_its_type(kind: str, text: str) -> None:
    with pytest.raises(Usage, match="for key column 'k': the key of table 't' is k"):
        get(MemoryStore(), one_row(MemoryStore(), kind, None), "t", [text])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 7),
        ("int64", 1.5),
        ("int64", b"7"),
        ("int8", 300),
        ("int64", 1 << 80),
        ("struct<a: int64, b: int64>", {"a": 1}),
        ("struct<a: int64>", {"a": 1, "b": 2}),
        ("date32[day]", object()),
    ],
)
def test_the_error_for_a_value_of_another_type_names_the_column_and_its_type(kind: str, value: object) -> None:
    with pytest.raises(Usage, match="for key column 'k': the key of table 't' is k"):
        get(MemoryStore(), one_row(MemoryStore(), kind, None), "t", [value])


def test_the_error_for_a_struct_says_how_to_write_one() -> None:
    with pytest.raises(Usage) as caught:
        get(MemoryStore(), one_row(MemoryStore(), "struct<a: int64>", None), "t", ["a=1"])
    assert "JSON" in caught.value.hint


@scaled(30)
@given(kind=st.sampled_from(sorted(KEYS)), text=st.text(max_size=12))
def test_any_text_is_a_key_or_a_usage_error(kind: str, text: str) -> None:
    table = Table((Column("k", kind),), (), 1)
    with suppress(Usage):
        assert parse_key("t", table, [text]).num_rows == 1


def test_only_pages_that_can_hold_the_key_are_read() -> None:
    store = CountingStore(MemoryStore())
    app = FlightsApp(store, Kafka())
    app.run(flights(10))
    loaded = app.load("aircraft", 1_000_000)
    at = resolve(store, "flights", now_ms=app.clock.now_ms)
    fresh = CountingStore(store)
    number = int(np.random.default_rng(7).integers(1_000_000))
    assert get(fresh, at, "aircraft", [f"K{number}"]).to_pylist() == [
        {"tail": f"K{number}", "flights": 1, "delay": number}
    ]
    assert fresh.bytes_read < 100_000
    assert set(fresh.counts) == {"get_range"}
    assert fresh.requests <= 9 * len(loaded.ssts)
