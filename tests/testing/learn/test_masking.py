"""Masked records keep their form, and equal texts remain equal."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.testing import Record
from slackwater.testing.learn.masking import RecordMask, mask_records
from slackwater.testing.learn.runs import TopicRecord


def masked(*records: Record, kept: Sequence[str] = ()) -> tuple[list[Record], RecordMask]:
    mask = RecordMask(kept)
    return [record for _, record in mask.records([TopicRecord("in", record) for record in records])], mask


TEXTS = st.text(st.sampled_from("abcXYZ0123456789é-_ "), min_size=2, max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats(allow_subnormal=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
)


def leaves(value: Any) -> list[Any]:
    """Return the texts and numbers in a document."""
    if isinstance(value, dict | list):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in leaves(item)]
    return [] if value is None or isinstance(value, bool) else [value]


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [*map(shape, value)]
    return len(value) if isinstance(value, str) else type(value)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "other"]), VALUES, max_size=3), max_size=6))
def test_masking_is_one_to_one_and_keeps_all_but_texts_and_numbers(documents: list[dict[str, Any]]) -> None:
    found = [
        json.loads(record.value or b"") for record in masked(*(Record(json.dumps(d).encode()) for d in documents))[0]
    ]
    assert [*map(shape, found)] == [*map(shape, documents)]
    pairs = {(repr(before), repr(after)) for before, after in zip(leaves(documents), leaves(found), strict=True)}
    assert len(pairs) == len({before for before, _ in pairs}) == len({after for _, after in pairs})


def test_letters_and_digits_are_replaced_and_times_and_names_are_kept() -> None:
    value = {
        "tail": "N14228",
        "at": "2013-01-01T05:15:00Z",
        "n": "17",
        "card": "4111111111111111",
        "price": 9.5,
        "k": 7,
    }
    (record,), mask = masked(Record(json.dumps(value).encode(), 1, b"N14228", [("trace", b"secret")], 7))
    found = json.loads(record.value or b"")
    assert found.keys() == value.keys()
    assert (found["at"], found["k"]) == (value["at"], 7)
    assert found["tail"] == (record.key or b"").decode() != value["tail"]
    for hidden in ("4228", "4111", "secret", "17", "9.5"):
        assert hidden not in str(record)
    assert (record.partition, record.time_ms) == (1, 7)
    assert {*mask.fields} == {"tail", "n", "card", "price", "key", "headers"}


def test_a_number_has_one_pseudonym_in_payloads_keys_and_texts() -> None:
    documents = [Record(json.dumps({"id": 4711, "ref": "4711", "of": [4711.0]}).encode(), key=b"4711")]
    (record, other), _ = masked(*documents, Record(b"4712", key=b"4712"))
    found = json.loads(record.value or b"")
    assert found["id"] == int(found["ref"]) == found["of"][0] == int(record.key or b"")
    assert (other.key, other.value) == (other.value, other.key)
    assert other.key != record.key
    assert b"4711" not in (record.value or b"")


def test_a_broken_document_is_masked_as_text_and_a_kept_field_is_shown() -> None:
    ((broken,), _) = masked(Record(b'{"tail": "N14228", "at'))
    assert b"4228" not in (broken.value or b"")
    document = Record(b'{"tail": "N14228", "name": "Joan", "age": 42, "floor": 43}')
    ((record,), _) = masked(document, kept=("tail", "age"))
    found = json.loads(record.value or b"")
    assert (found["tail"], found["age"]) == ("N14228", 42)
    assert found["name"] != "Joan"
    assert found["floor"] != 43


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 600 + '"Joan"' + "]" * 600,
        "9" * 5_000,
        '{"a": "Joan", "a": 7}',
        '["\\ud800Joan"]',
        '{"a": 1e999}',
        "NaN",
        "",
        '""',
        "[]",
    ],
)
def test_an_unusual_document_is_masked(text: str) -> None:
    (record,), _ = masked(Record(text.encode(), key=text.encode()))
    assert record.key == record.value
    assert b"Joan" not in (record.value or b"")


@pytest.mark.parametrize(
    "text",
    ["+491701234567", "+49 170 1234567", "123-45-6789", "4111 1111 1111 1111", "491701234567", "10.0.0.1",
     "2013-01-01 4111-1111", "0170/12345", "1234-56-7890", "12:345:678", "0471", "+3,5", "-1.50", "4711"],
)  # fmt: skip
def test_numbers_that_identify_somebody_are_masked_in_every_place(text: str) -> None:
    document = json.dumps({"text": text, "more": [{"in": text}]}).encode()
    places = [Record(document), Record(text.encode()), Record(b"1", key=text.encode())]
    places += [Record(json.dumps(text).encode()), Record(b"1", headers=[("trace", text.encode())])]
    for record in places:
        (found,), _ = masked(record)
        assert text not in str(found)
        # Half of the digits or more are others.
        assert not re.search(re.escape(text[: len(text) // 2]), str(found))


@pytest.mark.parametrize(
    "text",
    ["2013-01-01", "2013-12-31T23:59:59.123456Z", "2013-01-01 05:15:00+01:00", "05:15", "05:15:30.5", "7", "x",
     "true"],
)  # fmt: skip
def test_texts_that_a_program_computes_with_are_kept(text: str) -> None:
    record = Record(json.dumps({"text": text}).encode(), key=text.encode())
    assert masked(record)[0] == [record._replace(headers=[])]


@given(st.lists(st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{2}:[0-9]{2}", fullmatch=True), unique=True))
def test_no_pseudonym_is_a_text_that_is_kept(texts: list[str]) -> None:
    ((record,), _) = masked(Record(json.dumps(texts).encode()))
    assert len({*json.loads(record.value or b"")}) == len(texts)


@pytest.mark.parametrize("data", [b"\x00\x00\xff\xfe", b"\x00\x00\x00\x00\x01\x0cN14228"])
def test_a_record_that_is_not_text_is_refused_with_its_topic(data: bytes) -> None:
    for record in (Record(data), Record(b"{}", key=data), Record(b"{}", headers=[("trace", data)])):
        with pytest.raises(Refused, match=r"topic 'flights'.* not text") as error:
            mask_records([TopicRecord("flights", record)], lambda _: True, max_tries=9, instead="command")
        assert error.value.hint == "command"
        assert "N14228" not in str(error.value)


FIELDS = 200


@given(st.sets(st.integers(0, FIELDS - 1), min_size=1, max_size=2))
def test_of_many_fields_those_on_which_branches_depend_are_shown_after_few_tries(needed: set[int]) -> None:
    record = TopicRecord("in", Record(json.dumps({f"f{at}": f"Joan {at}" for at in range(FIELDS)}).encode()))
    tries = []

    def is_enough(records: Sequence[TopicRecord]) -> bool:
        tries.append(records)
        document = json.loads(records[0].record.value or b"")
        return all(document[f"f{at}"] == f"Joan {at}" for at in needed)

    few, mask = mask_records([record], is_enough, max_tries=100, instead="")
    assert is_enough(few)
    assert {*mask.kept} == {f"f{at}" for at in needed}
    assert len(tries) <= 102
    shown = re.findall(rb"Joan", few[0].record.value or b"")
    assert len(shown) == len(needed)
