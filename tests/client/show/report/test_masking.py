"""Values in reports: only as escaped text, and none unless requested."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from slackwater.client.show.report import HIDDEN_TEXT, Mask, ReportInput
from slackwater.common.printable import printable
from slackwater.snapshot.bisect.causes import Cause, TracedCause

from tests.client.show.report.cases import Parsed, rendered, reports, with_values
from tests.models.profiles import scaled

NASTY = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "</code></td></tr></table>",
    "a|b",
    "a\\|b",
    "`",
    "``` \n```\n# not a heading",
    "*not* _bold_ [link](http://x) <!-- ",
    "&lt;&#96;",
    "\x00\x1b[31m\r\n\t",
    "\u202eevil\u2066",
    "\u05e9\u05dc\u05d5\u05dd",
    "",
    " leads and follows ",
    "]]>",
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(NASTY)
Values = tuple[list[str], tuple[int, int], list[bytes]]
values = st.tuples(
    st.lists(texts, min_size=5, max_size=5, unique=True),
    st.lists(st.integers(-(2**60), 2**60), min_size=2, max_size=2, unique=True).map(lambda pair: (pair[0], pair[1])),
    st.lists(st.binary(max_size=20) | texts.map(str.encode), min_size=3, max_size=3, unique=True),
)

PLAIN: Values = ["k", "x", "y", "l", "c"], (1, 2), [b"1", b"2", b"3"]
few = scaled(20, in_ci=200)


def in_words(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"not valid UTF-8, as hex: {data.hex()}"


@few
@given(values)
def test_shown_values_are_escaped_text_in_the_same_elements_whatever_they_contain(
    case_of: Callable[[], ReportInput], given: Values
) -> None:
    case = case_of()
    plain, nasty = (reports(with_values(case, *values), show=True) for values in (PLAIN, given))
    texts, numbers, data = given
    for found, expected in ((nasty[0], plain[0]), (rendered(nasty[1]), rendered(plain[1]))):
        parsed = Parsed.of(found)
        assert parsed.tags == Parsed.of(expected).tags
        assert parsed.markup in ([], ["DOCTYPE html"])
        shown = parsed.texts["code"]
        for value in (*texts[:3], in_words(data[0]), in_words(data[1])):
            assert any(printable(value) == text for text in shown), value
        assert all(str(number) in shown for number in numbers)
        lines = "\n".join(map(printable, in_words(data[2]).split("\n")))
        assert any(lines.strip("\n") == text.strip("\n") for text in parsed.texts["pre"])


@few
@given(values, st.integers(1, 50))
def test_a_report_without_values_depends_only_on_types_and_lengths(
    case_of: Callable[[], ReportInput], given: Values, step: int
) -> None:
    case, (texts, numbers, data) = case_of(), given
    others = ["".join(chr((ord(character) + step) % 0xD800) for character in text) for text in texts]
    assume(len({*others}) == 5)
    other = with_values(
        case, others, (numbers[0] + step, numbers[1] + step), [bytes(each ^ step for each in one) for one in data]
    )
    one = with_values(case, *given)
    assert reports(one) == reports(other)


def test_a_hidden_value_appears_nowhere_in_the_report(case: ReportInput) -> None:
    secrets = ["alice@example.com", "one secret", "other secret", "literal secret", "secret in a comment"]
    hidden = with_values(case, secrets, (4_711_000_001, 4_711_000_002), [b"key-42", b"header-42", b"value-42"])
    for text in reports(hidden):
        for secret in (*secrets, "4711", "key-42", "header-42", "value-42"):
            assert secret not in text
        assert "(17 characters)" in text.replace("&#40;", "(")
        assert "(8 bytes)" in text


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (None, r"\N"),
        ("Ada", f'"{HIDDEN_TEXT}" (3 characters)'),
        (b"\x00", f'"{HIDDEN_TEXT}" (1 byte)'),
        (17, f"{HIDDEN_TEXT} (number)"),
        (Decimal("1.5"), f"{HIDDEN_TEXT} (number)"),
        (True, f"{HIDDEN_TEXT} (boolean)"),
        (date(2013, 1, 1), f"{HIDDEN_TEXT} (time)"),
        (datetime(2013, 1, 1, tzinfo=UTC), f"{HIDDEN_TEXT} (time)"),
        ([1, 2], f"[{HIDDEN_TEXT}] (2 items)"),
        ({"a": 1}, f"{{{HIDDEN_TEXT}}} (1 field)"),
    ],
)
def test_a_hidden_value_is_replaced_by_its_type_and_length(value: object, shape: str) -> None:
    assert Mask(show=False).value(value).text == shape


@pytest.mark.parametrize(
    ("sql", "hidden"),
    [
        ("FROM t WHERE a = 'x''y' AND b > -1.5e3", f"FROM t WHERE a = {HIDDEN_TEXT} AND b > -{HIDDEN_TEXT}"),
        ("FROM t WHERE a = 'ends\\' AND b = 'c'", f"FROM t WHERE a = {HIDDEN_TEXT} AND b = {HIDDEN_TEXT}"),
        ("FROM t WHERE a = E'it\\'s' AND b = $$x'y$$", f"FROM t WHERE a = {HIDDEN_TEXT} AND b = {HIDDEN_TEXT}"),
        (
            "FROM t WHERE a = $q$x$$'y$q$ AND 0xff < 1_000",
            f"FROM t WHERE a = {HIDDEN_TEXT} AND {HIDDEN_TEXT} < {HIDDEN_TEXT}",
        ),
        ('SELECT "a ""b"" 1", t1.x2 FROM t1', 'SELECT "a ""b"" 1", t1.x2 FROM t1'),
        ("FROM t -- alice's\nWHERE a", f"FROM t {HIDDEN_TEXT} WHERE a"),
        ("FROM t /* 'a' /* b */ alice */ WHERE a", f"FROM t {HIDDEN_TEXT}"),
        ("FROM t WHERE at > DATE '2013-01-01'", f"FROM t WHERE at > DATE {HIDDEN_TEXT}"),
    ],
)
def test_literals_and_comments_of_sql_are_hidden_as_values(sql: str, hidden: str) -> None:
    assert Mask(show=False).sql(sql) == hidden
    assert Mask(show=True).sql(sql) == sql


def test_the_reason_of_a_failed_replay_hides_the_users_error_message() -> None:
    reason = "stage 'legs' does not run: ledger.py:12: KeyError: 'alice'"
    assert Mask(show=False).reason(reason) == f"stage 'legs' does not run: {HIDDEN_TEXT}"
    assert Mask(show=True).reason(reason) == reason


@pytest.mark.parametrize(
    "cause",
    [
        Cause(
            "absence",
            proved=True,
            sentence="no record of the bad key came",
            evidence={"keys": [{"tail": "alice"}], "num_keys": 1, "since": None, "read_to": {"flights[0]": 7}},
        ),
        Cause(
            "operation",
            proved=True,
            sentence="carriers@v7 is an edit by hand, by ann@there",
            evidence={"kind": "edit", "what": "UPDATE aircraft SET tail = 'alice' WHERE delay > 4711"},
        ),
        Cause(
            "unknown", proved=False, sentence="not known: a task failed: alice", evidence={"reason": "failed: alice"}
        ),
    ],
)
def test_values_in_the_evidence_of_a_cause_are_hidden_too(case: ReportInput, cause: Cause) -> None:
    told = replace(case, explanation=TracedCause(cause))
    hidden, shown = reports(told), reports(told, show=True)
    assert all("alice" in text for text in shown)
    assert not any("alice" in text or "4711" in text for text in hidden)
