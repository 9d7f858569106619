"""Masked records keep their form, and equal texts stay equal."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from slackwater.testing import Record
from slackwater.testing.learn.masking import RecordMask

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


def test_letters_and_digits_of_texts_are_replaced_and_times_numbers_and_schemas_are_kept() -> None:
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
    avro = Record(b"\x00\x00\xff\xfe")
    assert RecordMask().record(avro) == avro._replace(headers=[])


def test_a_broken_document_is_masked_as_text_and_a_kept_field_is_shown() -> None:
    broken = RecordMask().record(Record(b'{"tail": "N14228", "at'))
    assert b"4228" not in (broken.value or b"")
    kept = RecordMask(("tail",)).record(Record(b'{"tail": "N14228", "name": "Joan"}'))
    assert json.loads(kept.value or b"")["tail"] == "N14228"
    assert b"Joan" not in (kept.value or b"")
