"""Time spans: one grammar for options, files, refs and programs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.common.durations import DAY_MS, HOUR_MS, format_ms, parse_ms
from slackwater.errors import Usage


@given(st.integers(0, 10**9 * DAY_MS))
def test_a_formatted_span_parses_to_the_same_span(span_ms: int) -> None:
    assert parse_ms("span", format_ms(span_ms)) == span_ms


@given(st.lists(st.tuples(st.integers(0, 10**8), st.sampled_from(["ms", "s", "m", "h", "d"])), min_size=1, max_size=9))
def test_parts_of_a_span_add_up_with_or_without_blanks(parts: list[tuple[int, str]]) -> None:
    each = sum(parse_ms("span", f"{number}{unit}") for number, unit in parts)
    assert parse_ms("span", "".join(f"{number}{unit}" for number, unit in parts)) == each
    assert parse_ms("span", " ".join(f"{number} {unit.upper()}" for number, unit in parts)) == each


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 seconds", 10_000),
        ("500ms", 500),
        ("500 milliseconds", 500),
        ("1 minute", 60_000),
        ("2 min", 120_000),
        ("0.5 s", 500),
        ("1.5 s", 1_500),
        ("0.1 ms", 0),
        ("2 hours", 2 * HOUR_MS),
        ("90s", 90_000),
        ("1d12h", 36 * HOUR_MS),
        ("1 day 12 hours", 36 * HOUR_MS),
        ("36h", 36 * HOUR_MS),
        ("2w", 14 * DAY_MS),
        ("2W", 14 * DAY_MS),
        (" 7 Days ", 7 * DAY_MS),
        ("5m", 300_000),
        ("90d", 90 * DAY_MS),
    ],
)
def test_spans_in_common_notations_are_parsed(text: str, expected: int) -> None:
    assert parse_ms("span", text) == expected


@pytest.mark.parametrize(
    "text", ["", "7", "days", "-1 day", "7 months", "7days!", "1 .5 s", "inf s", "1e3s", "1\u017f", 7, 7.5, None]
)
def test_an_invalid_span_is_refused_and_the_error_names_its_option(text: object) -> None:
    with pytest.raises(Usage, match=r"trigger .* is not a span of time; expected a number and a unit") as caught:
        parse_ms("trigger", text)
    assert repr(text) in caught.value.message


def test_a_span_of_more_than_a_billion_days_is_refused() -> None:
    assert parse_ms("ttl", "999999999d") == 999_999_999 * DAY_MS
    with pytest.raises(Usage, match="ttl '1000000001d' is longer than 1,000,000,000 days"):
        parse_ms("ttl", "1000000001d")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("120", 120_000), ("0.5", 500), (".5", 500), ("1e3", 1_000_000), ("2 min", 120_000), ("0", 0)],
)
def test_a_bare_number_is_seconds_only_where_allowed(text: str, expected: int) -> None:
    assert parse_ms("--patience", text, bare_seconds=True) == expected


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "five"])
def test_malformed_bare_numbers_are_refused(text: str) -> None:
    with pytest.raises(Usage):
        parse_ms("--patience", text, bare_seconds=True)
