"""Keys in SQL statements and messages: which parts of a text are masked."""

import pyarrow as pa
import pytest
from slackwater.operations.erasure.texts import TextMasker
from slackwater.operations.key_search.matching import KeyRows


@pytest.mark.parametrize(
    ("key", "text", "masked"),
    [
        ("a", "aircraft v3: DELETE FROM aircraft WHERE tail = 'a' -- a typo", "… tail = '(forgotten)' -- a typo"),
        ("a", "a count is never negative", "a count is never negative"),
        ("a", "forget aircraft=a", "forget aircraft=(forgotten)"),
        ("a", "aircraft 'a' is wrong", "aircraft '(forgotten)' is wrong"),
        ("N003", "request of N003, and of N0033", "request of (forgotten), and of N0033"),
        ("o'brien@x.org", "… WHERE tail IN ('o''brien@x.org', 'b')", "… WHERE tail IN ('(forgotten)', 'b')"),
        ("o'brien@x.org", "mail of o'brien@x.org", "mail of (forgotten)"),
        ("user-7", "user-7-7 and xuser-7", "user-7-7 and xuser-7"),
        (1, "UPDATE aircraft SET n = 1 WHERE tail = 1", "UPDATE aircraft SET n = 1 WHERE tail = (forgotten)"),
        (1, "DELETE FROM aircraft WHERE tail IN (1, 11, 2)", "DELETE FROM aircraft WHERE tail IN ((forgotten), 11, 2)"),
        (
            1,
            "INSERT INTO aircraft VALUES (1, 5), (10, 1)",
            "INSERT INTO aircraft VALUES ((forgotten), 5), (10, (forgotten))",
        ),
        (1, "1 of 11 flights", "1 of 11 flights"),
    ],
)
def test_a_key_is_masked_only_where_a_text_means_the_key(key: object, text: str, masked: str) -> None:
    texts = TextMasker({"aircraft": KeyRows(pa.table({"tail": [key]}))})
    made = texts.mask_keys(text)
    assert made == (text.partition("tail")[0] + "tail" + masked.partition("tail")[2] if masked[0] == "…" else masked)
    assert texts.contain_key(text) == (made != text)
