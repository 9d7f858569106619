"""Matching of records with keys: a record matches if the field that becomes the key equals it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.operations.key_search.matching import FieldComparison, KeyRows, Matches, Rule, match_records
from slackwater.snapshot.query.fields import Field, all_column_text, column_leaves
from slackwater.store.archive.columns import HEADERS

Header = tuple[str, bytes]


def records(*values: bytes | None, key: bytes | None = None, headers: list[Header] | None = None) -> pa.Table:
    had = [{"key": name, "value": value} for name, value in headers or []]
    return pa.table(
        {
            "key": pa.array([key] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([had] * len(values), HEADERS),
        }
    )


def found(keys: list[Any] | pa.Table, rows: pa.Table, *fields: str, **more: Any) -> Matches:
    table = keys if isinstance(keys, pa.Table) else pa.table({"id": keys})
    columns = [tuple(FieldComparison(Field.parse(field), field, **more) for field in fields)]
    return match_records(rows, [Rule("people", tuple(columns * table.num_columns))], {"people": KeyRows(table)})


def holds(key: Any, value: bytes | None, *fields: str) -> bool:
    return bool(found([key], records(value), *(fields or ("$.id",))).mask[0])


@pytest.mark.parametrize(
    ("value", "is_held"),
    [
        (b'{"id": "user-7"}', True),
        (b'{"id":"user-7-7"}', False),
        (b'{"id": "xuser-7"}', False),
        (b'{"note": "of user-7"}', False),
        (b'{"amount": "user-7"}', False),
        (b'{"id": "\\u0075ser-7"}', True),
        (b'{"id": "user\\u002d7"}', True),
        (b'{"i\\u0064": "user-7"}', True),
        (b'{"id": ["x", "user-7"]}', True),
        (b'{"id": {"id": "user-7"}}', False),
        (b'[{"id": "x"}, {"id": "user-7"}]', True),
        (b'{"id": "user-7", "id": "x"}', True),
        (b"{'id': 'user-7'}", True),
        (b'\xef\xbb\xbf {"id": "user-7"}', True),
        (b'{"id": "x"} {"id": "user-7"}', True),
        (b'"user-7"', False),
        (b"", False),
        (None, False),
    ],
)
def test_a_json_field_is_parsed_before_its_value_is_compared(value: bytes | None, is_held: bool) -> None:
    assert holds("user-7", value) == is_held
    assert not found(["user-7"], records(value), "$.id").unproved


def test_json_inside_text_is_parsed_if_the_field_path_continues() -> None:
    inner = json.dumps({"user": {"id": "zoë"}})
    for text in (inner, json.dumps(inner), json.dumps(json.dumps([inner]))):
        assert holds("zoë", json.dumps({"payload": text}).encode(), "$.payload.user.id")
    assert not holds("zoë", json.dumps({"payload": inner}).encode(), "$.payload")


@pytest.mark.parametrize("field", ["$.users.id", "$.users[*].id", "$['users'][0].id", "users.id", "$.*.id"])
def test_a_field_path_can_be_written_in_several_ways(field: str) -> None:
    assert holds("ada", b'{"users": [{"id": "bob"}, {"id": "ada"}]}', field)
    assert Field.parse(Field.parse(field).text()) == Field.parse(field)


def test_property_names_are_values_too_and_names_with_dots_are_written_in_brackets() -> None:
    assert holds("ada", b'{"by": {"ada": 1}}', "$.by.~")
    assert holds("ada", b'{"user.id": "ada"}', "$['user.id']")
    assert not holds("ada", b'{"user": {"id": "ada"}}', "$['user.id']")
    with pytest.raises(Usage, match="is not a field of a record"):
        Field.parse("$.a[")


def test_record_keys_and_headers_are_fields_too() -> None:
    rows = records(b"{}", key=b"user-7", headers=[("who", b"user-8"), ("json", b'{"id": "user-9"}')])
    for key, field, is_held in (
        ("user-7", "key", True),
        ("user-8", "headers.who", True),
        ("user-8", "headers", True),
        ("user-8", "headers.other", False),
        ("user-9", "headers.json.id", True),
        ("user-9", "headers", False),
    ):
        assert bool(found([key], rows, field).mask[0]) == is_held, field
    assert holds("plain", b"plain", "value")
    assert not holds("plain", b"plain text", "value")


@pytest.mark.parametrize(
    ("key", "equal", "others"),
    [
        (42, ["42", "42.0", "4.2e1", '"42"', '" 42 "'], ["43", "420", "42.5", '"42x"', "true", "null", '"4 2"']),
        ("42", ["42", '"42"'], ["42.0", "4.2e1", '"42.0"', '"042"', '" 42"']),
        ("42.5", ["42.5", "42.50", '"42.5"'], ["42", '"42.50"']),
        ("true", ["true", '"true"'], ["1", '"True"']),
        (2**63 - 1, [str(2**63 - 1)], [str(2**63 - 2), "9.223372036854775807e17"]),
        (0.1, ["0.1", "1e-1", '"0.1"'], ["0.10000000000000002"]),
        (Decimal("12345678901234567890123456789012345.678"), ["12345678901234567890123456789012345.678"], ["12345"]),
        (True, ["true", '"true"'], ["false", "1"]),
        (date(2026, 11, 28), ['"2026-11-28"', '"2026-11-28T10:00:00"'], ['"2026-11-29"']),
        (
            datetime(2026, 11, 28, 10, tzinfo=UTC),
            ['"2026-11-28T10:00:00Z"', '"2026-11-28 11:00:00+01:00"', "1795860000", "1795860000000"],
            ['"2026-11-28"', '"2026-11-28T10:00:01Z"'],
        ),
        (b"\x00\xff", ['"AP8="'], ['"AP4="']),
    ],
)
def test_values_are_compared_by_the_type_of_the_key_column(key: Any, equal: list[str], others: list[str]) -> None:
    for text in equal:
        assert holds(key, b'{"id": %b}' % text.encode()), text
    for text in others:
        assert not holds(key, b'{"id": %b}' % text.encode()), text


def test_a_number_as_record_key_is_text_or_bytes_of_kafkas_serialisers() -> None:
    for key in (b"7", b"\0\0\0\7", b"\0\0\0\0\0\0\0\7"):
        assert found([7], records(b"{}", key=key), "key").mask[0]
    assert not found([7], records(b"{}", key=b"\0\7"), "key").mask[0]


def test_a_column_of_rows_is_compared_by_its_own_type() -> None:
    rows = pa.table(
        {
            "who": pa.array([42, 43, None], pa.int32()),
            "text": ["42", "042", None],
            "list": [["x", "42"], [], None],
            "map": pa.array([[("a", "42")], [("42", "b")], None], pa.map_(pa.string(), pa.string())),
            "of": [{"id": "42"}, {"id": None}, None],
            "json": ['{"id": 42}', "{", None],
        }
    )

    def places(key: Any, field: str) -> list[int]:
        table = pa.table({"id": [key]})
        rule = Rule("people", ((FieldComparison(Field.parse(field, of_row=True), field),),))
        return [int(each) for each in match_records(rows, [rule], {"people": KeyRows(table)}).mask.nonzero()[0]]

    assert places("42", "who") == places(42, "who") == places("42", "text") == places("42", "list") == [0]
    assert places(42, "text") == [0, 1]
    assert places("42", "map.a") == places("42", "map.*") == places("42", "of.id") == places(42, "json.id") == [0]
    assert places("42", "map.~") == [1]
    assert found([42], records(b"{}"), "gone").fields == {}


def test_a_key_of_several_columns_matches_only_if_all_columns_do() -> None:
    keys = pa.table({"country": ["DE", "FR", None], "number": [17, 18, 19]})
    rule = Rule("people", tuple((FieldComparison(Field.parse(f), f),) for f in ("$.country", "$.number")))
    values = [{"country": c, "number": n} for c, n in (("DE", 17), ("DE", 18), ("FR", 18), (None, 19), ("DE", 19))]
    rows = records(*(json.dumps(value).encode() for value in values), b'{"number": 19}')
    assert match_records(rows, [rule], {"people": KeyRows(keys)}).mask.tolist() == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]


def test_unparsable_records_are_counted_unless_they_match_by_another_field() -> None:
    rows = records(b'{"id": "ada"}', b'{"id": "ada"', b"\x00\x00\x00\x00\x07xyz", b"ada,7", b"{}", b'{"id":"ada"} x')
    some = found(["ada"], rows, "$.id")
    assert some.mask.tolist() == [True, False, False, False, False, True]
    assert some.unproved == {"neither JSON nor of a known schema": 2, "bytes of an unknown schema": 1}
    assert found(["ada"], records(b"ada,7", key=b"ada"), "$.id", "key").unproved == {}
    assert some.fields == {"$.id": 2}


def test_known_functions_are_applied_and_others_are_counted_as_unproved() -> None:
    rows = records(b'{"id": "Ada"}', b'{"id": "ada"}', b'{"id": "bob"}', b"{}")
    assert found(["ada"], rows, "$.id", functions=("lower",)).mask.tolist() == [True, True, False, False]
    assert found(["Ada"], rows, "$.id", key_functions=("lower",)).mask.tolist() == [False, True, False, False]
    some = found(["ada"], rows, "$.id", unknown_function="sha2")
    assert some.mask.tolist() == [False, True, False, False]
    assert some.unproved == {"$.id leads to people through sha2": 2}


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(_TEXT, min_size=1, max_size=8), st.lists(_TEXT, min_size=1, max_size=4, unique=True), st.data())
def test_json_is_read_as_by_python_whatever_is_escaped(values: list[str], gone: list[str], data: st.DataObject) -> None:
    """The texts have randomly escaped characters."""
    values += gone

    def written(text: str) -> str:
        units = text.encode("utf-16-be")
        escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
        return f'"{escaped}"' if data.draw(st.booleans()) else json.dumps(text, ensure_ascii=data.draw(st.booleans()))

    said = [f'{{"a": [{{"id": {written(value)}}}], "other": {written(gone[0])}}}'.encode() for value in values]
    expected = [json.loads(each)["a"][0]["id"] in gone for each in said]
    assert found([*gone], records(*said), "$.a.id").mask.tolist() == expected


@given(st.lists(st.integers(-3, 60), max_size=30), st.lists(st.integers(-3, 60), min_size=1, max_size=30, unique=True))
def test_matching_many_keys_at_once_equals_matching_each_alone(there: list[int], gone: list[int]) -> None:
    rows = records(*(json.dumps({"id": f"user-{n}" if n % 2 else n}).encode() for n in there))
    texts = [f"user-{n}" if n % 2 else str(n) for n in gone]
    assert found(texts, rows, "$.id").mask.tolist() == [n in gone for n in there]


MICROS = st.integers(0, 10**9).map(lambda second: second * 1_000_000 + second % 7)


def windows(*bounds: tuple[int, int]) -> pa.Array:
    starts, ends = (pa.array(side, pa.timestamp("us", "UTC")) for side in zip(*bounds, strict=True))
    return pa.StructArray.from_arrays([starts, ends], names=["start", "end"])


@given(MICROS, st.lists(MICROS, min_size=1), st.integers(1, 10**5), st.integers(1, 4))
def test_a_record_holds_the_windows_of_its_time(start: int, times: list[int], seconds: int, overlaps: int) -> None:
    width = seconds * overlaps * 1_000_000
    bounds = [(start + step * seconds * 1_000_000, start + step * seconds * 1_000_000 + width) for step in range(4)]
    keys = pa.table({"w": windows(*bounds)})
    moments = [datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000) for us in times]
    texts = records(*(json.dumps({"at": moment.isoformat()}).encode() for moment in moments))
    parsed = pa.table({"at": pa.array(moments, pa.timestamp("ms", "UTC") if start % 2 else pa.timestamp("us", "UTC"))})
    for rows, field in ((texts, Field.parse("$.at")), (parsed, Field("at"))):
        rule = Rule("hours", ((FieldComparison(field, "at", functions=("window",)),),))
        matches = match_records(rows, [rule], {"hours": KeyRows(keys)})
        held = [matches.keys.get(row, {}).get("hours", set()) for row in range(len(times))]
        if field.column == "at" and start % 2:
            moments = [moment.replace(microsecond=moment.microsecond // 1000 * 1000) for moment in moments]
        spans = [[datetime.fromtimestamp(us / 1e6, UTC) for us in span] for span in bounds]
        assert held == [{at for at, (first, end) in enumerate(spans) if first <= moment < end} for moment in moments]
        assert not matches.unproved


def test_a_window_equals_itself_in_a_row_and_is_undecided_through_what_is_no_time() -> None:
    keys = pa.table({"w": windows((0, 60_000_000))})
    sent = pa.table({"w": windows((0, 60_000_000), (60_000_000, 120_000_000))})
    same = Rule("minutes", ((FieldComparison(Field("w"), "w"),),))
    matches = match_records(sent, [same], {"minutes": KeyRows(keys)})
    assert (matches.mask.tolist(), matches.unproved) == ([True, False], {})
    by_time = Rule("minutes", ((FieldComparison(Field.parse("$.at"), "$.at", functions=("window",)),),))
    rows = records(b'{"at": "1 Jan 1970"}', b'{"at": null}', b'{"at": 59}', b"{}")
    matches = match_records(rows, [by_time], {"minutes": KeyRows(keys)})
    assert matches.mask.tolist() == [False, False, True, False]
    assert matches.unproved == {"$.at leads to minutes through a value that is no time": 1}


def test_the_start_of_a_window_is_undecided() -> None:
    rule = Rule("minutes", ((FieldComparison(Field.parse("$.at"), "$.at", functions=("window",)),),))
    keys = KeyRows(pa.table({"start": pa.array([0], pa.timestamp("us", "UTC"))}))
    matches = match_records(records(b'{"at": 59}'), [rule], {"minutes": keys})
    assert matches.unproved == {"$.at leads to minutes through window": 1}


def test_a_hundred_thousand_keys_are_matched_in_one_pass() -> None:
    """A separate search for each key would take hours."""
    rows = records(*(b'{"id": %d}' % number for number in range(0, 400_000, 100)))
    assert found([*range(100_000)], rows, "$.id").mask.sum() == 1_000


def test_a_record_counts_once_and_constant_columns_are_not_compared() -> None:
    rows = records(b'{"id": "ada", "n": 7}', b'{"id": "bob", "n": 7}', key=b"ada")
    assert found(["ada"], rows, "$.id", "key").fields == {"$.id": 1, "key": 1}
    keys = pa.table({"side": ["in"], "n": [7]})
    rule = Rule("people", ((), (FieldComparison(Field.parse("$.n"), "$.n"),)))
    some = match_records(rows, [rule], {"people": KeyRows(keys)})
    assert (some.mask.tolist(), some.fields) == ([True, True], {"$.n": 2})


def test_a_column_without_rows_or_chunks_has_no_values() -> None:
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, pa.schema([("who", pa.string())])):
            pass
        rows = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert rows["who"].num_chunks == 0
    assert sum(map(len, all_column_text(rows["who"]))) == 0
    assert [*column_leaves(rows["who"], ())] == []
