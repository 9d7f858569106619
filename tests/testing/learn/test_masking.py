"""Masked records keep their form, and equal texts stay equal."""

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

TEXTS = st.text(st.sampled_from("abcXYZ0123456789é-_ "), min_size=2, max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [*map(shape, value)]
    return len(value) if isinstance(value, str) else value


@given(st.lists(st.dictionaries(st.sampled_from(["name", "other"]), VALUES, max_size=3), max_size=6))
def test_masking_is_one_to_one_and_keeps_all_but_texts(documents: list[dict[str, Any]]) -> None:
    mask = RecordMask()
    masked = [json.loads(mask.record(Record(json.dumps(each).encode())).value or b"") for each in documents]
    assert [*map(shape, masked)] == [*map(shape, documents)]
    pairs = {*zip(texts(documents), texts(masked), strict=True)}
    assert len(pairs) == len({before for before, _ in pairs}) == len({after for _, after in pairs})


def test_letters_and_digits_of_texts_are_replaced_and_times_and_numbers_are_kept() -> None:
    mask = RecordMask()
    value = {"tail": "N14228", "at": "2013-01-01T05:15:00Z", "n": "17", "card": "4111111111111111", "price": 9.5}
    masked = mask.record(Record(json.dumps(value).encode(), 1, b"N14228", [("trace", b"secret")], 7))
    found = json.loads(masked.value or b"")
    assert (found["at"], found["n"], found["price"]) == (value["at"], "17", 9.5)
    assert found["tail"] == (masked.key or b"").decode() != value["tail"]
    assert "4228" not in str(masked)
    assert "4111" not in str(masked)
    assert "secret" not in str(masked)
    assert (masked.partition, masked.time_ms) == (1, 7)
    assert {*mask.fields} == {"tail", "card", "key", "headers"}


def test_a_broken_document_is_masked_as_text_and_a_kept_field_is_shown() -> None:
    broken = RecordMask().record(Record(b'{"tail": "N14228", "at'))
    assert b"4228" not in (broken.value or b"")
    kept = RecordMask(("tail",)).record(Record(b'{"tail": "N14228", "name": "Joan"}'))
    assert json.loads(kept.value or b"")["tail"] == "N14228"
    assert b"Joan" not in (kept.value or b"")


@pytest.mark.parametrize(
    "text",
    ["+491701234567", "+49 170 1234567", "123-45-6789", "4111 1111 1111 1111", "491701234567", "10.0.0.1",
     "2013-01-01 4111-1111", "0170/12345", "1234-56-7890", "12:345:678"],
)  # fmt: skip
def test_numbers_that_identify_somebody_are_masked_in_every_place(text: str) -> None:
    document = json.dumps({"text": text, "more": [{"in": text}]}).encode()
    places = [Record(document), Record(text.encode()), Record(b"1", key=text.encode())]
    places += [Record(json.dumps(text).encode()), Record(b"1", headers=[("trace", text.encode())])]
    for record in places:
        masked = RecordMask().record(record)
        assert text not in str(masked)
        # Half of the digits or more are others.
        assert not re.search(re.escape(text[: len(text) // 2]), str(masked))


@pytest.mark.parametrize(
    "text",
    ["2013-01-01", "2013-12-31T23:59:59.123456Z", "2013-01-01 05:15:00+01:00", "05:15", "05:15:30.5", "17", "-1.25",
     "+3,5", "1234567", "x", "true"],
)  # fmt: skip
def test_texts_that_a_program_computes_with_are_kept(text: str) -> None:
    record = Record(json.dumps({"text": text}).encode(), key=text.encode())
    assert RecordMask().record(record) == record._replace(headers=[])


@given(st.lists(st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{2}:[0-9]{2}", fullmatch=True), unique=True))
def test_no_pseudonym_is_a_text_that_is_kept(texts: list[str]) -> None:
    masked = json.loads(RecordMask().record(Record(json.dumps(texts).encode())).value or b"")
    assert len({*masked}) == len(texts)


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

    masked, mask = mask_records([record], is_enough, max_tries=100, instead="")
    assert is_enough(masked)
    assert {*mask.kept} == {f"f{at}" for at in needed}
    assert len(tries) <= 102
    shown = re.findall(rb"Joan", masked[0].record.value or b"")
    assert len(shown) == len(needed)
