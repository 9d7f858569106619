"""Formats of keys and values: bytes from Kafka's serialisers are decoded, and errors name the value."""

import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused, Usage
from slackwater.operations.from_kafka.formats import BadValue, Format, NewFields, Plain, Windowed
from slackwater.operations.from_kafka.opening import default_stage, open_format
from slackwater.operations.from_kafka.typed_formats import Decoded, Json, merge_types

SERIALISERS: dict[str, tuple[st.SearchStrategy[object], Callable[[object], bytes]]] = {
    "string": (st.text(), lambda text: str(text).encode("utf-8", "surrogatepass")),
    "bytes": (st.binary(), lambda data: bytes(data)),  # type: ignore[call-overload]
    "short": (st.integers(-(1 << 15), (1 << 15) - 1), lambda number: struct.pack(">h", number)),
    "int": (st.integers(-(1 << 31), (1 << 31) - 1), lambda number: struct.pack(">i", number)),
    "long": (st.integers(-(1 << 63), (1 << 63) - 1), lambda number: struct.pack(">q", number)),
    "float": (st.floats(width=32, allow_nan=False), lambda number: struct.pack(">f", number)),
    "double": (st.floats(allow_nan=False), lambda number: struct.pack(">d", number)),
}
"""Values of each plain format, and a Python copy of Kafka's serialiser for it."""
MS = st.integers(0, 253_402_300_799_999)


def binary(*values: bytes) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1_000, UTC).replace(microsecond=ms % 1_000 * 1_000)


@pytest.mark.parametrize("name", SERIALISERS)
@given(data=st.data())
def test_a_plain_format_reads_what_kafkas_serialiser_wrote(name: str, data: st.DataObject) -> None:
    values, serialise = SERIALISERS[name]
    drawn = data.draw(st.lists(values, max_size=5))
    assert Plain(name).decode(binary(*map(serialise, drawn))).to_pylist() == drawn


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), MS, MS), min_size=1, max_size=4))
def test_windowed_and_session_keys_have_columns_for_their_window(keys: list[tuple[str, int, int]]) -> None:
    store = binary(*(key.encode() + struct.pack(">qi", start, 0) for key, start, _ in keys))
    topic = binary(*(key.encode() + struct.pack(">q", start) for key, start, _ in keys))
    expected = [{"key": key, "window_start": utc(start)} for key, start, _ in keys]
    assert Windowed(Plain("string"), is_store=True).decode(store).to_pylist() == expected
    assert Windowed(Plain("string")).decode(topic).to_pylist() == expected
    sessions = binary(*(key.encode() + struct.pack(">qq", end, start) for key, start, end in keys))
    ends = [row | {"window_end": utc(end)} for row, (_, _, end) in zip(expected, keys, strict=True)]
    assert Windowed(Plain("string"), is_session=True).decode(sessions).to_pylist() == ends


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (Plain("string"), b"a", b"\xff", "it is not UTF-8"),
        (Plain("long"), b"\0" * 8, b"\0" * 4, "it has 4 bytes; a long has 8"),
        (Windowed(Plain("string")), b"\0" * 9, b"\0" * 7, "it has 7 bytes; a windowed key has at least 8"),
        (Windowed(Plain("string")), b"\0" * 9, b"customer-1", "which is no windowed key"),
        (Windowed(Plain("long"), is_store=True), b"\0" * 20, b"\0" * 19 + b"\1", "keeps duplicates, for a stream join"),
        (Windowed(Plain("string"), is_session=True), b"\0" * 16, b"\0" * 15, "a session has at least 16"),
    ],
)
def test_bytes_of_another_format_are_named_with_the_reason(kind: Format, good: bytes, bad: bytes, words: str) -> None:
    with pytest.raises(BadValue, match=words) as raised:
        kind.decode(binary(good, bad, good))
    assert raised.value.row == 1


TYPED = {"n": st.integers(-(1 << 40), 1 << 40), "b": st.booleans(), "t": st.text(st.characters(codec="utf-8"))}
OBJECTS = st.fixed_dictionaries({}, optional={**TYPED, "o": st.fixed_dictionaries({}, optional=TYPED)})


@pytest.mark.parametrize("new", [Json, lambda: Decoded("f.py:f", json.loads)], ids=["json", "decoder"])
@given(objects=st.lists(OBJECTS, min_size=1, max_size=6), sampled=st.integers(0, 6))
@example(objects=[{"o": {"n": 1}}, {"o": {"n": 1, "b": True}}], sampled=1)
@example(objects=[{"l": [{"n": 1}]}, {"l": [{"n": 1, "b": True}]}], sampled=1)
def test_objects_give_their_fields_whenever_these_are_first_seen(
    new: Callable[[], Format], objects: list[dict[str, object]], sampled: int
) -> None:
    texts = binary(*(json.dumps(value).encode() for value in objects))
    kind = new()
    kind.learn(texts.slice(0, sampled), None)
    for _ in range(10):
        try:
            decoded = kind.decode(texts).to_pylist()
            break
        except NewFields:
            continue
    assert [_without_nulls(row) for row in decoded] == [_without_nulls(value) for value in objects]


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    inside = {name: _without_nulls(inner) for name, inner in value.items()}
    return {name: inner for name, inner in inside.items() if inner not in (None, {})}


def test_a_text_that_looks_like_a_time_and_a_scalar_stay_what_they_are() -> None:
    kind = Json()
    kind.learn(binary(b'{"at": "2026-11-29T10:00:00Z"}'), None)
    assert kind.decode(binary(b'{"at": "soon"}')).to_pylist() == [{"at": "soon"}]
    scalar = Json()
    scalar.learn(binary(b"5"), None)
    assert scalar.decode(binary(b"7", b"null")).to_pylist() == [7, None]


def test_types_are_declared_for_json_and_other_values_are_errors() -> None:
    kind = Json({"amount": pa.float64()})
    kind.learn(binary(b'{"amount": 1, "n": 2}'), None)
    assert kind.decode(binary(b'{"amount": 1.5}')).to_pylist() == [{"amount": 1.5, "n": None}]
    for bad, words in ((b'{"n": "x"}', "field n is a string"), (b"{", "JSON"), (b'{"n": 1} {"n": 2}', "JSON")):
        with pytest.raises(BadValue, match=words) as raised:
            kind.decode(binary(b'{"n": 1}', bad))
        assert raised.value.row == 1


def test_a_decoder_returns_columns_and_its_errors_name_the_record(tmp_path: Path) -> None:
    file = tmp_path / "decoders.py"
    file.write_text("def pair(data):\n    a, b = data.decode().split('|')\n    return {'a': a, 'b': int(b)}\n")
    kind = open_format("value", f"{file}:pair", "orders", {})
    kind.learn(binary(b"x|1"), None)
    assert kind.decode(binary(b"y|2")).to_pylist() == [{"a": "y", "b": 2}]
    with pytest.raises(BadValue, match=r"decoders.py:pair raised ValueError: not enough values") as raised:
        kind.decode(binary(b"y|2", b"y"))
    assert raised.value.row == 1
    with pytest.raises(NotFound, match=r"no function of .* named 'pears'"):
        open_format("key", f"{file}:pears", "orders", {})
    file.write_text("1 / 0\n")
    with pytest.raises(Refused, match=r"decoders\.py does not run: ZeroDivisionError"):
        open_format("key", f"{file}:pair", "orders", {})


def test_a_decoder_may_return_new_fields_and_no_other_types() -> None:
    kind = Decoded("f.py:f", lambda data: json.loads(data))
    kind.learn(binary(b'{"a": 1}'), None)
    with pytest.raises(NewFields):
        kind.decode(binary(b'{"a": 1, "b": "x"}'))
    assert kind.decode(binary(b'{"a": 1, "b": "x"}')).to_pylist() == [{"a": 1, "b": "x"}]
    with pytest.raises(BadValue, match="returned a value that is no struct") as raised:
        kind.decode(binary(b'{"a": 2}', b'{"a": "x"}'))
    assert raised.value.row == 1


def test_stored_fields_keep_their_types_and_places() -> None:
    stored = pa.struct([("a", pa.float64()), ("gone", pa.string())])
    merged = merge_types(stored, pa.struct([("b", pa.int64()), ("a", pa.int64()), ("never", pa.null())]))
    assert merged == pa.struct([("a", pa.float64()), ("gone", pa.string()), ("b", pa.int64())])


@pytest.mark.parametrize(
    ("side", "text", "words"),
    [
        ("value", "xml", "--value 'xml' is no format"),
        ("value", "windowed:string", "no Python file"),
        ("key", "registry", "--key registry needs the registry's URL"),
        ("key", "windowed:xml", "--key 'xml' is no format"),
    ],
)
def test_an_unknown_format_is_refused(side: str, text: str, words: str) -> None:
    with pytest.raises((Usage, NotFound), match=words):
        open_format(side, text, "orders", {})


def test_the_stage_is_named_as_the_store() -> None:
    assert default_stage("shop-Totals-changelog", "shop") == "totals"
    assert default_stage("prices", "shop") == "prices"
