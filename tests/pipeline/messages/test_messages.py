"""Decoded messages compared with fastavro's; each bad message is isolated."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused
from slackwater.pipeline.messages.avro import AvroReader
from slackwater.pipeline.messages.decode import add_reason_field, add_reasons, open_reader, read_batch
from slackwater.pipeline.messages.registry import BadMessage, Schema

from tests.models.profiles import scaled
from tests.pipeline.messages.avro_messages import changes, encoded, expected, record

ORDER = record("Order", {"name": "number", "type": "long"}, {"name": "customer", "type": "string"})
PROTO = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Other { int32 z = 1; }
message Order {
  int64 number = 1; string customer = 2; google.protobuf.Timestamp at = 3; repeated string tags = 4;
  message Line { int32 cents = 1; } Line line = 5;
}"""


class Known(dict[int, Schema]):
    """A registry that knows these schemas by id."""

    def __call__(self, number: int) -> Schema:
        if number not in self:
            raise NotFound("schema id", str(number))
        return self[number]


def avro(schema: Any) -> Schema:
    return Schema("AVRO", json.dumps(schema))


def plain(value: Any) -> Any:
    """Return a value with Arrow's maps as pairs."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: plain(one) for key, one in value}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


@given(changes())
@scaled(60)
def test_messages_of_evolving_schemas_are_decoded_by_avros_rules(
    changed: tuple[Any, Any, list[dict[str, Any]]],
) -> None:
    writer, reader, rows = changed
    messages = [encoded(writer, 4, **row) for row in rows]
    values, bad = read_batch(pa.array(messages), open_reader(avro(reader)), "AVRO", Known({4: avro(writer)}))
    assert bad == ()
    found = [plain(value) for value in values.to_pylist()]
    wanted = [expected(message, writer, reader) for message in messages]
    # An empty map is an empty list to Arrow.
    assert [{k: v or None for k, v in one.items()} for one in found] == [
        {k: v or None for k, v in one.items()} for one in wanted
    ]


@given(
    st.lists(
        st.sampled_from(("good", "null", "cut", "longer", "json", "empty", "unknown", "proto", "newer")), max_size=12
    )
)
@scaled(40)
def test_each_bad_message_is_isolated_and_all_others_are_decoded(kinds: list[str]) -> None:
    newer = record("Order", *ORDER["fields"], {"name": "more", "type": "bytes"})
    known = Known({1: avro(ORDER), 2: avro(newer), 3: Schema("PROTOBUF", PROTO)})

    def message(n: int, kind: str) -> bytes | None:
        good = encoded(ORDER, 1, number=n, customer=f"c{n}")
        return {
            "good": good,
            "null": None,
            "cut": good[:-1],
            "longer": good + b"\0",
            "json": b'{"number": 1}',
            "empty": b"",
            "unknown": b"\0\0\0\0\x09" + good[5:],
            "proto": b"\0\0\0\0\x03" + good[5:],
            "newer": encoded(newer, 2, number=n, customer=f"c{n}", more=b"x"),
        }[kind]

    messages = pa.array([message(n, kind) for n, kind in enumerate(kinds)], pa.binary())
    values, bad = read_batch(messages, open_reader(known[1]), "AVRO", known)
    fine = {n for n, kind in enumerate(kinds) if kind in ("good", "newer")}
    assert values.to_pylist() == [{"number": n, "customer": f"c{n}"} if n in fine else None for n in range(len(kinds))]
    assert [one.row for one in bad] == [n for n, kind in enumerate(kinds) if n not in fine and kind != "null"]


EVERYTHING = record(
    "Everything",
    {"name": "b", "type": "boolean"},
    {"name": "s", "type": ["null", "string"]},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["x", "y"]}},
    {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
    {"name": "l", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
    {"name": "r", "type": record("R", {"name": "i", "type": "int"}, {"name": "again", "type": ["null", "E"]})},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
)
SOME = [
    {
        "b": True,
        "s": "é",
        "e": "y",
        "f": b"abc",
        "l": [{"k": 0.5}, {}],
        "r": {"i": -7, "again": "x"},
        "d": Decimal("1.50"),
    },
    {
        "b": False,
        "s": None,
        "e": "x",
        "f": b"\0" * 3,
        "l": [],
        "r": {"i": 1 << 30, "again": None},
        "d": Decimal("-99.99"),
    },
]


@given(st.sampled_from(SOME), st.data())
@scaled(60)
def test_a_message_that_fails_the_quick_check_also_fails_in_the_reader(
    values: dict[str, Any], data: st.DataObject
) -> None:
    schema = avro(EVERYTHING)
    good = encoded(EVERYTHING, 1, **values)
    bytes_ = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        bytes_[data.draw(st.integers(5, len(good) - 1))] = data.draw(st.integers(0, 255))
    del bytes_[data.draw(st.sampled_from([len(good), len(good) - 1, len(good) // 2])) :]
    reader, message = open_reader(schema), pa.array([bytes(bytes_)], pa.binary())
    try:
        reader.read(schema, message)
    except BadMessage:
        assert bytes(bytes_) != good
    else:
        assert reader.may_be_valid(schema, message).all()


def test_many_bad_messages_cost_one_decoding_each(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encoded(ORDER, 1, number=1, customer="c")
    messages = pa.array([good[:-1] if n % 3 else good for n in range(900)], pa.binary())
    reader, reads = open_reader(avro(ORDER)), 0
    read = AvroReader.read

    def counted(self: AvroReader, *words: Any) -> pa.Array:
        nonlocal reads
        reads += 1
        return read(self, *words)

    monkeypatch.setattr(AvroReader, "read", counted)
    values, bad = read_batch(messages, reader, "AVRO", Known({1: avro(ORDER)}))
    assert (values.null_count, len(bad), reads) == (600, 600, 2)
    nothing, all_bad = read_batch(pa.array([good[:-1]] * 5, pa.binary()), reader, "AVRO", Known({1: avro(ORDER)}))
    assert (nothing.null_count, len(all_bad)) == (5, 5)


def test_a_decimal_with_too_many_digits_is_bad() -> None:
    def message(unscaled: int) -> bytes:
        return b"\0\0\0\0\x01" + bytes((6,)) + unscaled.to_bytes(3, "big", signed=True)

    schema = avro(record("Price", {"name": "d", "type": EVERYTHING["fields"][-1]["type"]}))
    messages = pa.array([message(9999), message(10_000), message(-9999)], pa.binary())
    values, bad = read_batch(messages, open_reader(schema), "AVRO", Known({1: schema}))
    assert values.to_pylist() == [{"d": Decimal("99.99")}, None, {"d": Decimal("-99.99")}]
    assert [(one.row, "does not fit in precision" in one.why) for one in bad] == [(1, True)]


def test_unions_enums_references_and_logical_types_become_columns() -> None:
    point = {**record("Point", {"name": "x", "type": "int"}), "namespace": "geo"}
    fields = [
        {"name": "at", "type": "geo.Point"},
        {"name": "was", "type": ["null", "geo.Point"]},
        {"name": "who", "type": ["null", "string", "long"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "cents", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    ]
    schema = Schema("AVRO", json.dumps(record("Event", *fields)), (("geo.Point", Schema("AVRO", json.dumps(point))),))
    whole = record("Event", {**fields[0], "type": point}, *fields[1:])
    row = {"at": {"x": 1}, "was": None, "who": 5, "kind": "B", "cents": b"\x04\xd2", "day": 3, "id": "u"}
    reader = open_reader(schema)
    assert str(reader.type.field("who").type) == "struct<member0: string, member1: int64>"
    unlogical = json.loads(json.dumps(whole).replace('"logicalType"', '"plain"'))
    values, bad = read_batch(pa.array([encoded(unlogical, 1, **row)]), reader, "AVRO", Known({1: schema}))
    (value,) = values.to_pylist()
    assert bad == ()
    assert (value["at"], value["was"], value["who"]) == ({"x": 1}, None, {"member0": None, "member1": 5})
    assert (value["kind"], str(value["cents"]), str(value["day"]), value["id"]) == ("B", "12.34", "1970-01-04", "u")


def test_unions_are_resolved_branch_by_branch() -> None:
    def schema(kind: Any) -> Any:
        return record("Event", {"name": "who", "type": kind})

    kinds = {1: ["null", "int", "string"], 2: "string", 3: ["null", "string"], 4: "int"}
    known = Known({number: avro(schema(kind)) for number, kind in kinds.items()})
    rows = [(1, 5), (1, "x"), (1, None), (2, "y"), (3, None), (4, 7)]
    messages = pa.array([encoded(schema(kinds[number]), number, who=value) for number, value in rows])
    values, bad = read_batch(messages, open_reader(avro(schema(["string", "long", "null"]))), "AVRO", known)
    assert bad == ()
    found = [value["who"] and (value["who"]["member0"], value["who"]["member1"]) for value in values.to_pylist()]
    assert found == [(None, 5), ("x", None), None, ("y", None), None, (None, 7)]
    values, bad = read_batch(messages, open_reader(avro(schema(["null", "string"]))), "AVRO", known)
    assert [value and value["who"] for value in values.to_pylist()] == [None, "x", None, "y", None, None]
    assert [one.row for one in bad] == [0, 5]
    assert bad[1].why == "schema id 4: a value written as int matches no branch of a union of null, string"


def test_a_union_inside_a_nullable_record_is_decoded() -> None:
    paid = record("Paid", {"name": "by", "type": ["string", "long"]})
    schema = avro(record("Order", {"name": "paid", "type": ["null", paid]}))
    rows = [None, {"by": "card"}, None, {"by": 5}]
    messages = pa.array([encoded(json.loads(schema.text), 1, paid=row) for row in rows])
    values, bad = read_batch(messages, open_reader(schema), "AVRO", Known({1: schema}))
    assert bad == ()
    found = [value["paid"] and tuple(value["paid"]["by"].values()) for value in values.to_pylist()]
    assert found == [None, ("card", None), None, (None, 5)]


@pytest.mark.parametrize("every", [True, False])
def test_denied_access_to_the_registry_is_not_blamed_on_the_message(every: bool) -> None:
    def closed(_number: int) -> Schema:
        raise Refused("the schema registry denies this user access (status 403)")

    messages = pa.array([encoded(ORDER, 1, number=1, customer="ann")] * 3)
    with pytest.raises(Refused, match="denies this user access"):
        read_batch(messages, open_reader(avro(ORDER)), "AVRO", closed, find_all=every)


def test_protobuf_uses_the_readers_message_type_wherever_the_writers_schema_declares_it() -> None:
    first, moved = Schema("PROTOBUF", PROTO), Schema("PROTOBUF", PROTO.replace("message Other { int32 z = 1; }", ""))
    body = b"\x08\x05\x12\x03ann\x2a\x02\x08\x07\x48\x01"  # and a field 9, which nobody knows
    messages = [b"\0\0\0\0\x01\x02\x02" + body, b"\0\0\0\0\x02\0" + body, b"\0\0\0\0\x02\x02\0" + body]
    bad_ones = [b"\0\0\0\0\x01\0\x08\x05", b"\0\0\0\0\x02\0\x08"]
    reader = open_reader(first, "shop.Order")
    known = Known({1: first, 2: moved})
    values, bad = read_batch(pa.array([*messages, *bad_ones]), reader, "PROTOBUF", known)
    assert (
        values.to_pylist()[:3]
        == [
            {"number": 5, "customer": "ann", "at": None, "tags": [], "line": {"cents": 7}},
        ]
        * 3
    )
    assert [(one.row, one.why[:13]) for one in bad] == [(3, "schema id 1: "), (4, "schema id 2: ")]
    with pytest.raises(NotFound, match=r"shop\.Ordr.*the nearest: shop\.Order"):
        open_reader(first, "shop.Ordr")


def test_json_gets_types_from_its_schema_and_each_message_must_be_one_value() -> None:
    node = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "who": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        },
        "definitions": {"line": {"type": "object", "properties": {"cents": {"type": "number"}}}},
    }
    schema, head = Schema("JSON", json.dumps(node)), b"\0\0\0\0\x01"
    texts = [
        b'{"n": 1, "lines": [{"cents": 1.5}], "more": 2}',
        b'{"n":\n2,\n"who": "x"}',
        b'{"n": 1}{"n": 2}',
        b"",
        b'{"n": "x"}',
    ]
    values, bad = read_batch(pa.array([head + text for text in texts]), open_reader(schema), "JSON", Known({1: schema}))
    assert values.to_pylist() == [
        {"n": 1, "who": None, "lines": [{"cents": 1.5}]},
        {"n": 2, "who": "x", "lines": None},
        None,
        None,
        None,
    ]
    assert [one.row for one in bad] == [2, 3, 4]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema("AVRO", json.dumps(record("Tree", {"name": "left", "type": ["null", "Tree"]}))), "is recursive"),
        (Schema("AVRO", "{"), "not valid JSON"),
        (Schema("AVRO", '{"type": "rekord"}'), "cannot be converted to columns"),
        (Schema("AVRO", json.dumps(record("Empty"))), "has no fields"),
        (Schema("AVRO", json.dumps(["int", ["string"]])), "nested in a union"),
        (Schema("AVRO", json.dumps({"type": "record", "name": "W"})), "invalid or missing"),
        (Schema("AVRO", '{"type": "bytes", "logicalType": "decimal", "precision": 39}'), "Spark supports at most 38"),
        (Schema("PROTOBUF", "message {"), "protoc rejects"),
        (Schema("PROTOBUF", 'syntax = "proto3"; message A { repeated A a = 1; }'), "is recursive"),
        (
            Schema("PROTOBUF", 'syntax = "proto2"; message A { optional group G = 1 { optional int32 z = 1; } }'),
            "is a group",
        ),
        (Schema("PROTOBUF", 'syntax = "proto3"; message A { map<string, A> a = 1; }'), "is recursive"),
        (Schema("JSON", '{"type": "object"}'), "without properties"),
        (Schema("JSON", '{"properties": {"a": {"$ref": "#"}}}'), "contains itself"),
        (Schema("THRIFT", ""), "THRIFT are not supported"),
    ],
)
def test_a_schema_without_columns_is_refused_with_one_sentence(schema: Schema, why: str) -> None:
    with pytest.raises(Refused, match=why):
        open_reader(schema)


def decoded(writer: Any, reader: Any, body: bytes) -> dict[str, Any]:
    """Decode an Avro message. Returns its record, or the reason why it is bad."""
    messages, known = pa.array([b"\0\0\0\0\x01" + body], pa.binary()), Known({1: avro(writer)})
    values, bad = read_batch(messages, open_reader(avro(reader)), "AVRO", known)
    return {"bad": bad[0].why.removeprefix("schema id 1: ")} if bad else values.to_pylist()[0]


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Kind", "symbols": list(symbols), **more}


def test_an_enum_symbol_unknown_to_the_reader_becomes_the_default() -> None:
    writer = record("W", {"name": "k", "type": enum("UNKNOWN", "CAT", default="UNKNOWN")})
    for kind in (lambda one: one, lambda one: ["null", one], lambda one: ["long", "null", one]):
        read = record("W", {"name": "k", "type": kind(enum("DOG", "UNKNOWN", default="UNKNOWN"))})
        found = decoded(writer, read, b"\x02")["k"]
        assert found == ({"member0": None, "member1": "UNKNOWN"} if isinstance(found, dict) else "UNKNOWN")
    assert decoded(writer, record("W", {"name": "k", "type": enum("DOG", "UNKNOWN")}), b"\x02") == {
        "bad": "'CAT' is not a symbol of enum Kind, which has no default"
    }
    assert decoded(writer, record("W", {"name": "k", "type": "string"}), b"\x02") == {
        "bad": "a value written as enum Kind cannot be read as string"
    }


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            1700000000123456789,
            datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, -1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 5, datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)),
        ({"type": "long", "logicalType": "timestamp-micros"}, 5, datetime(1970, 1, 1, 0, 0, 0, 5, UTC)),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, 5000, datetime(1970, 1, 1, 0, 0, 0, 5)),  # noqa: DTZ001  local
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 5, datetime(1970, 1, 1, 0, 0, 0, 5000)),  # noqa: DTZ001  local
        ({"type": "int", "logicalType": "date"}, 19675, date(2023, 11, 14)),
        ({"type": "int", "logicalType": "time-millis"}, 7, 7),
        ({"type": "long", "logicalType": "time-micros"}, 7, 7),
        (
            {"type": "string", "logicalType": "uuid"},
            "00000000-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-000000000001",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, "\u00ff\u0085", Decimal("-1.23")),
        (
            {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
            "\u00ff\u0085",
            Decimal("-1.23"),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 4}, "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ffA", b"\xffA"),
        (enum("LOW", "HIGH"), "HIGH", "HIGH"),
        (
            record(
                "Box",
                {"name": "a", "type": "int", "default": 3},
                {"name": "b", "type": ["string", "null"], "default": "b"},
            ),
            {},
            {"a": 3, "b": "b"},
        ),
        ({"type": "map", "values": "double"}, {"k": 1}, [("k", 1.0)]),
        (
            {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}},
            [5],
            [datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)],
        ),
        ("float", "NaN", None),
    ],
)
def test_a_field_unknown_to_the_writer_gets_its_default(kind: Any, default: Any, value: Any) -> None:
    writer = record("W", {"name": "n", "type": "int"})
    found = decoded(writer, record("W", {"name": "d", "type": kind, "default": default}), b"\x02")["d"]
    assert found == value if value is not None else math.isnan(found)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "1"),
        ("int", 1 << 31),
        ("boolean", 1),
        (enum("A"), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "A"),
        ("string", None),
    ],
)
def test_a_default_that_does_not_match_its_type_is_reported(kind: Any, default: Any) -> None:
    writer = record("W", {"name": "n", "type": "int"})
    why = decoded(writer, record("W", {"name": "d", "type": kind, "default": default}), b"\x02")["bad"]
    assert why.startswith("the default of the reader's field 'd' does not have the field's type")


def test_unions_of_records_enums_and_fixed_become_structs_with_a_field_per_branch() -> None:
    paid, sent = record("Paid", {"name": "by", "type": "string"}), record("Sent", {"name": "by", "type": "string"})
    fixed = {"type": "fixed", "name": "Id", "size": 2}
    schema = record("Event", {"name": "of", "type": ["null", paid, sent, enum("A", "B"), fixed]})
    bodies = {
        b"\x00": None,
        b"\x02\x02x": (0, {"by": "x"}),
        b"\x04\x02x": (1, {"by": "x"}),
        b"\x06\x02": (2, "B"),
        b"\x08ab": (3, b"ab"),
    }
    for body, value in bodies.items():
        found = decoded(schema, schema, body)["of"]
        assert (found and next((n, v) for n, v in enumerate(found.values()) if v is not None)) == value
    # A branch is found by its name, or by an alias of it, wherever it stands.
    renamed = record("Event", {"name": "of", "type": [{**sent, "name": "Shipped", "aliases": ["Sent"]}, "null", paid]})
    assert decoded(schema, renamed, b"\x04\x02x")["of"] == {"member0": {"by": "x"}, "member1": None}
    assert decoded(schema, renamed, b"\x02\x02x")["of"] == {"member0": None, "member1": {"by": "x"}}
    assert "that the reader cannot read" in decoded(schema, renamed, b"\x06\x02")["bad"]


def test_arrays_of_items_without_bytes_are_refused_only_in_the_writers_schema() -> None:
    nothing = record("W", {"name": "l", "type": {"type": "array", "items": record("N", {"name": "n", "type": "null"})}})
    more = record("N", {"name": "n", "type": "null"}, {"name": "i", "type": "int"})
    writer = record("W", {"name": "l", "type": {"type": "array", "items": more}})
    assert decoded(writer, nothing, b"\x04\x02\x02\x00") == {"l": [{"n": None}, {"n": None}]}
    assert decoded(nothing, nothing, b"\x04\x00") == {
        "bad": "Avro arrays and maps whose items have no bytes, such as null, are not supported"
    }


def test_newer_messages_are_decoded_by_an_older_schema_if_nothing_is_lost() -> None:
    writer = record("W", {"name": "a", "type": ["null", "long"]}, {"name": "b", "type": "double"})
    read = record("W", {"name": "a", "type": "int"}, {"name": "b", "type": "float"}, {"name": "gone", "type": "string"})
    assert decoded(writer, read, b"\x02\x0a" + struct.pack("<d", 0.5)) == {"a": 5, "b": 0.5, "gone": None}
    assert decoded(writer, read, b"\x00" + struct.pack("<d", math.inf))["a"] is None
    assert decoded(writer, read, b"\x00" + struct.pack("<d", 0.1)) == {"bad": "a double does not fit into a float"}
    assert "not in range" in decoded(writer, read, b"\x02\xfe\xff\xff\xff\x1f" + struct.pack("<d", 0.5))["bad"]


PARTS = """syntax = "proto2"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
message M {
  enum E { B = 2; A = 1; } optional E e = 1; repeated E es = 2; optional uint32 u = 3; optional fixed64 f = 4;
  required int32 must = 6; optional google.protobuf.Timestamp at = 7;
  enum Z { ZERO = 0; TWO = 2; } map<int32, Z> of = 8; optional google.protobuf.Duration took = 9;
}"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x08\x07\x10\x01\x10\x07\x10\x02", {"e": None, "es": ["A", "B"]}),  # closed: 7 is none of the field's
        (b"\x18\xff\xff\xff\xff\x0f\x21" + b"\xff" * 8, {"u": (1 << 32) - 1, "f": Decimal((1 << 64) - 1)}),
        (b"\x3a\x02\x08\x05\x3a\x03\x10\xd8\x36", {"at": datetime(1970, 1, 1, 0, 0, 5, 7, UTC)}),  # in two parts
        (b"\x42\x04\x08\x01\x10\x00\x42\x04\x08\x01\x10\x02", {"of": [(1, "TWO")]}),
        (b"\x4a\x0d\x08\xfd" + b"\xff" * 8 + b"\x01\x10\x00", {"took": timedelta(seconds=-3)}),
    ],
)
def test_proto2_messages_equal_googles(body: bytes, expected: dict[str, Any]) -> None:
    schema = Schema("PROTOBUF", PARTS)
    values, bad = read_batch(pa.array([b"\0\0\0\0\x01\0" + body]), open_reader(schema), "PROTOBUF", Known({1: schema}))
    assert bad == ()
    (found,) = values.to_pylist()
    empty = {"e": None, "es": [], "u": None, "f": None, "must": None, "at": None, "of": [], "took": None}
    assert found == empty | expected


def test_a_time_beyond_the_columns_range_makes_a_bad_message() -> None:
    schema = Schema("PROTOBUF", PARTS)
    far = b"\x3a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    values, bad = read_batch(pa.array([b"\0\0\0\0\x01\0" + far]), open_reader(schema), "PROTOBUF", Known({1: schema}))
    assert values.to_pylist() == [None]
    assert "out of range for a column of microseconds" in bad[0].why


def test_only_bad_messages_have_a_reason() -> None:
    good = encoded(ORDER, 1, number=1, customer="ann")
    messages = pa.array([good, good[:-1], None, good], pa.binary())
    reader = open_reader(avro(ORDER))
    values, bad = read_batch(messages, reader, "AVRO", Known({1: avro(ORDER)}))
    said = add_reasons(values, bad, "_why")
    assert said.type == add_reason_field(reader.type, "_why")
    ann = {"number": 1, "customer": "ann", "_why": None}
    why = "schema id 1: the bytes do not match the Avro schema"
    assert said.to_pylist() == [ann, {"number": None, "customer": None, "_why": why}, None, ann]
    assert add_reasons(values, bad, "") is values
