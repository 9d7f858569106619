"""In which records a key stands."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.keep.forget.words import Words, holding
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


def holds(row: dict[str, object], *values: bytes | None, **more: object) -> list[bool]:
    rows = records(*values, **more)  # type: ignore[arg-type]
    return [bool(each) for each in holding(rows, [Words.of(row)], key="key")]


@pytest.mark.parametrize(
    ("value", "is_held"),
    [
        (b'{"id": "user-7"}', True),
        (b'{"id": "user-77"}', False),
        (b'{"id": "xuser-7"}', False),
        (b'{"id": "user-7_"}', False),
        (b"user-7", True),
        (b"to user-77, of user-7.", True),
        (b"\x0cuser-7", True),  # Avro: twice the length, and no text
        (b"\x00\x01user-77", True),  # no text: nobody knows where a value ends
        (b"", False),
        (None, False),
    ],
)
def test_text_is_found_as_a_whole_word_and_in_bytes_anywhere(value: bytes | None, is_held: bool) -> None:
    assert holds({"id": "user-7"}, value) == [is_held]


def test_a_length_that_looks_like_a_letter_does_not_hide_a_word() -> None:
    name = "a-name-of-24-letters-abc"
    assert holds({"id": name}, bytes([2 * len(name)]) + name.encode() + b"zz") == [True]


def test_keys_and_headers_are_looked_into_and_names_in_other_writing() -> None:
    assert holds({"id": "user-7"}, b"{}", key=b"user-7") == [True]
    assert holds({"id": "user-7"}, b"{}", headers=[("who", b"user-7")]) == [True]
    assert holds({"id": "José/1"}, json.dumps({"id": "José/1"}).encode(), '{"id": "José\\/1"}'.encode()) == [True, True]
    assert holds({"id": b"\xff\x00\x01"}, b"..\xff\x00\x01..", b"\xff\x00") == [True, False]


def test_numbers_are_found_where_they_can_be_told() -> None:
    seven = {"id": 7}
    assert holds(seven, b"{}", key=b"7") == holds(seven, b"{}", key=b"\0\0\0\7") == [True]
    assert holds(seven, b"{}", key=b"\0\0\0\0\0\0\0\7") == [True]
    said = (b'{"id": 7}', b'{"id":"7"}', b'{"id": 77}', b'{"id": 7.5}', b'{"n": 7}', b"7")
    assert holds(seven, *said) == [True, True, False, False, False, False]
    rows = pa.table({"id": [7, 8, None], "other": ["7", "7", "7"]})
    assert holding(rows, [Words.of(seven)]).tolist() == [True, False, False]


def test_of_a_key_of_several_columns_all_are_there() -> None:
    both = {"country": "DE", "number": 17}
    said = (b'{"country": "DE", "number": 17}', b'{"country": "DE", "number": 18}', b'{"number": 17}')
    assert holds(both, *said) == [True, False, False]
    assert holds({"country": None, "number": None}, b"null", None) == [False, False]


@given(st.lists(st.integers(0, 60), max_size=40), st.lists(st.integers(0, 60), max_size=40, unique=True))
def test_many_keys_at_once_are_found_as_each_by_itself(there: list[int], gone: list[int]) -> None:
    rows = records(*(json.dumps({"id": f"user-{number}", "n": number}).encode() for number in there))
    words = [Words.of({"id": f"user-{number}"}) if number % 3 else Words.of({"n": number}) for number in gone]
    assert holding(rows, words, key="key").tolist() == [number in gone for number in there]


@given(st.lists(st.integers(-3, 60), max_size=40), st.lists(st.integers(-3, 60), min_size=21, unique=True))
def test_many_numbers_at_once_are_found_as_each_by_itself(there: list[int], gone: list[int]) -> None:
    values = [b'{"no": 7, "id" : "%d"}' % number if number % 2 else b'{"id":%d.5}' % number for number in there]
    rows = records(*values).append_column("id", pa.array([number + 1 for number in there], pa.int32()))
    rows = rows.set_column(0, "key", pa.array([b"%d" % (number + 2) for number in there], pa.binary()))
    words = [Words.of({"id": number}) for number in gone]
    alone = [bool(any(holding(rows.slice(at, 1), [each], key="key")[0] for each in words)) for at in range(len(there))]
    assert holding(rows, words, key="key").tolist() == alone


def test_a_hundred_thousand_numbers_are_looked_for_in_one_pass() -> None:
    """Each by itself over all records would take hours."""
    rows = records(*(b'{"id": %d}' % number for number in range(0, 400_000, 100)))
    found = holding(rows, [Words.of({"id": number}) for number in range(100_000)], key="key")
    assert found.sum() == 1_000
