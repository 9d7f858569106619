"""Records of a sink: JSON, Avro and bytes, of all column types."""

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused
from slackwater.pipeline.api.sink import Encoding, sink
from slackwater.pipeline.kafka import json_rows
from slackwater.pipeline.messages import outgoing
from slackwater.store.archive.columns import HEADERS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 1, 1)),
    pa.timestamp("us", "UTC"): st.integers(-(2**50), 2**52).map(lambda us: EPOCH + timedelta(microseconds=us)),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=4), max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a slice of rows with nulls, so that the code must respect buffer offsets."""
    kinds = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    rows = draw(st.integers(1, 6))
    columns = [pa.array(draw(st.lists(st.none() | TYPES[kind], min_size=rows, max_size=rows)), kind) for kind in kinds]
    table = pa.table(columns, names=[f"c{number}" for number in range(len(kinds))])
    return table.slice(draw(st.integers(0, rows - 1)))


@given(tables())
def test_avro_records_are_readable_by_fastavro(rows: pa.Table) -> None:
    schema = fastavro.parse_schema(json.loads(outgoing.avro_schema_of("alerts-value", rows.schema)))
    messages = outgoing.avro_messages(rows, 258).to_pylist()
    assert {message[:5] for message in messages} == {b"\x00\x00\x00\x01\x02"}
    found = [fastavro.schemaless_reader(io.BytesIO(message[5:]), schema) for message in messages]
    assert found == rows.to_pylist()


def test_lists_of_floats_may_be_empty() -> None:
    rows = pa.table({"x": pa.array([[], None, []], pa.list_(pa.float64()))})
    schema = fastavro.parse_schema(json.loads(outgoing.avro_schema_of("alerts-value", rows.schema)))
    messages = outgoing.avro_messages(rows, 258).to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(one[5:]), schema) for one in messages] == rows.to_pylist()


@given(tables())
def test_json_has_the_values_of_the_rows_and_omits_nulls(rows: pa.Table) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
        if isinstance(value, bytes):
            return base64(value)
        return value.isoformat() if isinstance(value, date) else float(value) if isinstance(value, Decimal) else value

    expected = [{name: plain(one) for name, one in row.items() if one is not None} for row in rows.to_pylist()]
    assert [json.loads(text) for text in json_rows.encode_objects(rows).to_pylist()] == expected


def base64(value: bytes) -> str:
    from base64 import b64encode

    return b64encode(value).decode()


def test_json_equals_sparks_to_json() -> None:
    rows = pa.table(
        {
            "n": [None, 1],
            "text": ['say "é"\n', None],
            "f": [float("nan"), 1e20],
            "d": [Decimal("1.10"), None],
            "nested": pa.array([{"a": [1, None], "b": None}, None]),
            "map": pa.array([[("k", Decimal("2.50"))], []], pa.map_(pa.string(), pa.decimal128(10, 2))),
            "at": pa.array([1_700_000_000_123_999, None], pa.timestamp("us", "UTC")),
            "local": pa.array([0, None], pa.timestamp("us")),
        }
    )
    # What to_json of Spark 4.3 gives for these, but for 1.0E20.
    assert [text.decode() for text in json_rows.encode_objects(rows).to_pylist()] == [
        '{"text":"say \\"é\\"\\n","f":"NaN","d":1.10,"nested":{"a":[1,null]},"map":{"k":2.50},'
        '"at":"2023-11-14T22:13:20.123Z","local":"1970-01-01T00:00:00.000"}',
        '{"n":1,"f":1e+20,"map":{}}',
    ]


ANY_64 = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**16), 10**18) | st.just(1_700_000_000_000_000_000)


def spark_time(us: int, zone: str) -> str:
    """Return a time as Spark's `to_json` writes it, by numpy's calendar.

    Years have four digits, or more with a sign.
    """
    text = str(np.datetime64(us // 1_000, "ms"))
    year, rest = text[: text.index("-", 1)], text[text.index("-", 1) :]
    sign = "-" if year.startswith("-") else "+" if len(year) > 4 else ""
    return f"{sign}{year.lstrip('-'):0>4}{rest}{zone}"


@given(st.lists(st.none() | ANY_64, min_size=1, max_size=5), st.sampled_from(["s", "ms", "us", "ns"]))
def test_json_can_hold_times_of_any_year(ticks: list[int | None], unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    us = [None if one is None else one * 10**6 // per_second for one in ticks]
    if any(one is not None and abs(one) >= 2**63 for one in us):
        us = [one if one is None or abs(one) < 2**63 else None for one in us]
        ticks = [None if one is None else tick for one, tick in zip(us, ticks, strict=True)]
    for zone, shown in (("UTC", "Z"), (None, "")):
        column = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
        expected = [None if one is None else spark_time(one, shown) for one in us]
        found = json_rows.encode_values(pa.chunked_array([column])).to_pylist()
        assert [None if one is None else json.loads(one) for one in found] == expected
        nested = pa.table({"at": pa.StructArray.from_arrays([column], ["t"]), "all": pa.array([[]] * len(ticks))})
        objects = [json.loads(text)["at"] for text in json_rows.encode_objects(nested).to_pylist()]
        assert objects == [{} if one is None else {"t": one} for one in expected]


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_json_can_hold_dates_of_any_year(days: list[int | None]) -> None:
    column = pa.array(days, pa.int32()).cast(pa.date32())
    expected = [None if day is None else spark_time(day * 86_400_000_000, "").partition("T")[0] for day in days]
    table = pa.table(
        {"d": column, "l": pa.array([[day] for day in days], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))}
    )
    found = [json.loads(text) for text in json_rows.encode_objects(table).to_pylist()]
    assert [row.get("d") for row in found] == [row["l"][0] for row in found] == expected


def test_far_times_are_written_as_by_spark() -> None:
    us = [1_700_000_000_000_000_000, -62_135_596_800_000_001, -64_517_996_800_000_000, 253_402_300_800_000_000]
    us += [-(2**63) + 1, 2**63 - 1, -1]
    days = [-719_162, -719_163, 2_932_896, 2_932_897, 19_675_926, -(2**31), 2**31 - 1]
    times = pa.chunked_array([pa.array(us, pa.int64()).cast(pa.timestamp("us", "UTC"))])
    dates = pa.chunked_array([pa.array(days, pa.int32()).cast(pa.date32())])
    # What to_json of Spark 4.3 gives for these.
    assert [json.loads(one) for one in json_rows.encode_values(times).to_pylist()] == [
        *("+55840-11-08T22:13:20.000Z", "0000-12-31T23:59:59.999Z", "-0075-07-04T22:13:20.000Z"),
        *("+10000-01-01T00:00:00.000Z", "-290308-12-21T19:59:05.224Z", "+294247-01-10T04:00:54.775Z"),
        "1969-12-31T23:59:59.999Z",
    ]
    assert [json.loads(one) for one in json_rows.encode_values(dates).to_pylist()] == [
        *("0001-01-01", "0000-12-31", "9999-12-31", "+10000-01-01"),
        *("+55840-11-09", "-5877641-06-23", "+5881580-07-11"),
    ]


def test_strings_that_are_not_utf8_are_escaped_in_json_and_avro() -> None:
    names = pa.array([b"M\xfcnchen", b'"\xff"', b"Paris"]).cast(
        options=pc.CastOptions(pa.string(), allow_invalid_utf8=True)
    )
    rows = pa.table({"city": names})
    expected = [{"city": "M\\xfcnchen"}, {"city": '"\\xff"'}, {"city": "Paris"}]
    assert [json.loads(text) for text in json_rows.encode_objects(rows).to_pylist()] == expected
    schema = fastavro.parse_schema(json.loads(outgoing.avro_schema_of("s", rows.schema)))
    messages = outgoing.avro_messages(rows, 1).to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(one[5:]), schema) for one in messages] == expected
    assert (
        outgoing.encode_records(rows, sink("t", key="city", value="city").encoding, 1)["value"].to_pylist()[0]
        == b"M\xfcnchen"
    )


def test_key_value_and_headers_come_from_columns_or_are_encoded_from_them() -> None:
    rows = pa.table({"k": ["a", None], "n": [1, 2], "body": [b"x", None], "trace": ["t", None]})

    def made(encoding: Encoding) -> dict[str, list[Any]]:
        outgoing.check_encoding("the sink", encoding, rows.schema)
        return outgoing.encode_records(rows, encoding, 1).to_pydict()

    assert made(sink("t", key="k", value="body", headers={"id": "trace"}).encoding) == {
        "key": [b"a", None],
        "value": [b"x", None],
        "header id": [b"t", None],
    }
    assert made(sink("t", key=["k", "n"], value="body").encoding)["key"] == [b'{"k":"a","n":1}', b'{"n":2}']
    assert made(sink("t", key="n", headers={"a": "trace", "b": "body"}).encoding) == {
        "key": [b"1", b"2"],
        "value": [b'{"k":"a","n":1}', b'{"n":2}'],
        "header a": [b"t", None],
        "header b": [b"x", None],
    }
    assert made(sink("t", value="body").encoding)["key"] == [None, None]


def test_a_column_of_all_headers_is_not_part_of_the_value() -> None:
    carried = [[{"key": "traceparent", "value": b"00-1"}, {"key": "from", "value": None}], None]
    rows = pa.table({"n": [1, 2], "headers": pa.array(carried, HEADERS)})
    encoding = sink("t", headers="headers").encoding
    outgoing.check_encoding("the sink", encoding, rows.schema)
    found = outgoing.encode_records(rows, encoding, 1)
    assert found["value"].to_pylist() == [b'{"n":1}', b'{"n":2}']
    assert found["headers"].to_pylist() == carried
    with pytest.raises(NotFound, match="headers column named 'headers'"):
        outgoing.check_encoding("sink 't'", encoding, rows.schema.remove(1))
    with pytest.raises(Refused, match="its headers column 'n' is int64; expected an array of"):
        outgoing.check_encoding("sink 't'", sink("t", headers="n").encoding, rows.schema)


def test_columns_that_cannot_be_encoded_are_refused() -> None:
    rows = pa.schema([("n", pa.int64()), ("took", pa.duration("us")), ("a-b", pa.string())])
    with pytest.raises(NotFound, match="key column named 'k'"):
        outgoing.check_encoding("sink 't'", sink("t", key="k").encoding, rows)
    with pytest.raises(Refused, match="its value column 'n' is int64; expected bytes or a string"):
        outgoing.check_encoding("sink 't'", sink("t", value="n").encoding, rows)
    with pytest.raises(Refused, match="column 'took' is duration"):
        outgoing.check_encoding("sink 't'", sink("t").encoding, rows)
    with pytest.raises(Refused, match="column 'a-b' has a name that Avro does not allow"):
        outgoing.check_encoding("sink 't'", sink("t", value="avro", registry="http://r:1").encoding, rows.remove(1))
