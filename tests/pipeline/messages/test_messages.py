"""What messages say, against fastavro; and that a bad one is found, alone, whatever is wrong with it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused
from slackwater.pipeline.messages.avro import AvroReader
from slackwater.pipeline.messages.decode import open_reader, read_batch
from slackwater.pipeline.messages.schema import BadMessage, Schema

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
    """Schemas by their ids."""

    def __call__(self, number: int) -> Schema:
        if number not in self:
            raise NotFound("schema id", str(number))
        return self[number]


def avro(schema: Any) -> Schema:
    return Schema("AVRO", json.dumps(schema))


def plain(value: Any) -> Any:
    """Arrow gives maps as pairs."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: plain(one) for key, one in value}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


@given(changes())
@scaled(60)
def test_messages_are_read_as_avro_says_whatever_has_changed(changed: tuple[Any, Any, list[dict[str, Any]]]) -> None:
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
def test_a_bad_message_is_found_alone_and_all_others_are_read(kinds: list[str]) -> None:
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
def test_what_cannot_be_a_message_at_a_glance_is_none_for_the_reader(
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
        assert reader.likely(schema, message).all()


def test_many_bad_messages_cost_one_look_each(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_decimal_of_more_digits_than_its_schema_has_is_bad() -> None:
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


def test_a_union_is_read_as_another_by_its_branches() -> None:
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
    assert bad[1].why == "schema id 4: what is written as int is in no branch of a union of null, string"


def test_a_record_that_may_be_null_has_a_union() -> None:
    paid = record("Paid", {"name": "by", "type": ["string", "long"]})
    schema = avro(record("Order", {"name": "paid", "type": ["null", paid]}))
    rows = [None, {"by": "card"}, None, {"by": 5}]
    messages = pa.array([encoded(json.loads(schema.text), 1, paid=row) for row in rows])
    values, bad = read_batch(messages, open_reader(schema), "AVRO", Known({1: schema}))
    assert bad == ()
    found = [value["paid"] and tuple(value["paid"]["by"].values()) for value in values.to_pylist()]
    assert found == [None, ("card", None), None, (None, 5)]


@pytest.mark.parametrize("every", [True, False])
def test_a_registry_that_lets_nobody_in_is_no_messages_fault(every: bool) -> None:
    def closed(_number: int) -> Schema:
        raise Refused("the schema registry does not let this user read: it says 403")

    messages = pa.array([encoded(ORDER, 1, number=1, customer="ann")] * 3)
    with pytest.raises(Refused, match="does not let this user read"):
        read_batch(messages, open_reader(avro(ORDER)), "AVRO", closed, every=every)


def test_protobuf_is_read_by_the_readers_type_wherever_the_writers_schema_has_it() -> None:
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


def test_json_is_typed_by_its_schema_and_each_message_is_one_value() -> None:
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
        (Schema("AVRO", json.dumps(record("Tree", {"name": "left", "type": ["null", "Tree"]}))), "contains itself"),
        (Schema("AVRO", "{"), "no JSON"),
        (Schema("AVRO", '{"type": "rekord"}'), "no columns"),
        (Schema("PROTOBUF", "message {"), "protoc does not take"),
        (Schema("JSON", '{"type": "object"}'), "without properties"),
        (Schema("JSON", '{"properties": {"a": {"$ref": "#"}}}'), "contains itself"),
        (Schema("THRIFT", ""), "THRIFT are not read"),
    ],
)
def test_a_schema_without_columns_is_refused_in_a_sentence(schema: Schema, why: str) -> None:
    with pytest.raises(Refused, match=why):
        open_reader(schema)
