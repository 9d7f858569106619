import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.snapshot.cut.refs import (
    AtTime,
    AtVersion,
    CommitsBack,
    Latest,
    NamedSnapshot,
    Ref,
    RefMoment,
    check_new_name,
    parse_ref,
)
from slackwater.store.versions.keys import check_name

NOW_MS = 1_795_245_120_000
DAY_MS = 86_400_000


def at(*parts: int) -> AtTime:
    return AtTime(round(datetime(*parts, tzinfo=UTC).timestamp() * 1000))


@pytest.fixture(params=["UTC", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "stage", "moment"),
    [
        ("flights", "", Latest()),
        ("flights@now", "", Latest()),
        ("flights@before-upgrade", "", NamedSnapshot("before-upgrade")),
        ("flights@-5m", "", AtTime(NOW_MS - 300_000)),
        ("flights@-90s", "", AtTime(NOW_MS - 90_000)),
        ("flights@-2h", "", AtTime(NOW_MS - 7_200_000)),
        ("flights@-1d", "", AtTime(NOW_MS - 86_400_000)),
        ("flights@~0", "", CommitsBack(0)),
        ("flights@~3", "", CommitsBack(3)),
        ("flights/routes", "routes", Latest()),
        ("flights/routes@v42", "routes", AtVersion(42)),
        ("flights/routes@~3", "routes", CommitsBack(3)),
        ("flights/routes@good", "routes", NamedSnapshot("good")),
        ("flights/routes@2026-11-21T07:12Z", "routes", at(2026, 11, 21, 7, 12)),
        ("flights@2026-11-21T07:12Z", "", at(2026, 11, 21, 7, 12)),
        ("flights@2026-11-21T07:12+01:00", "", at(2026, 11, 21, 6, 12)),
        ("flights@2026-11-21 07:12:00.250Z", "", at(2026, 11, 21, 7, 12, 0, 250_000)),
    ],
)
def test_every_form_of_a_ref_is_understood(text: str, stage: str, moment: RefMoment) -> None:
    assert parse_ref(text, now_ms=NOW_MS) == Ref(text, "flights", stage, moment)


def test_a_time_without_an_offset_is_local(time_zone: str) -> None:
    hours = {"UTC": 0, "America/New_York": 5}[time_zone]
    assert parse_ref("flights@2026-11-21T07:12", now_ms=NOW_MS + DAY_MS).moment == at(2026, 11, 21, 7 + hours, 12)
    assert parse_ref("flights@2026-11-21", now_ms=NOW_MS + DAY_MS).moment == at(2026, 11, 21, hours)


def test_a_time_given_in_seconds_includes_all_of_that_second() -> None:
    moment = parse_ref("flights@2026-11-21T07:12:05Z", now_ms=NOW_MS).moment
    assert moment == at(2026, 11, 21, 7, 12, 5, 999_000)


def test_a_future_time_is_refused_with_the_current_time() -> None:
    with pytest.raises(Usage, match="2027-01-01 is in the future; this machine's clock says 2026-11-2") as caught:
        parse_ref("flights/routes@2027-01-01", now_ms=NOW_MS)
    assert "flights/routes@now" in caught.value.hint


def test_a_time_less_than_a_minute_ahead_is_accepted_because_clocks_differ() -> None:
    def ahead(seconds: int) -> str:
        return datetime.fromtimestamp(NOW_MS / 1000 + seconds, UTC).isoformat(timespec="milliseconds")

    assert parse_ref(f"flights@{ahead(60)}", now_ms=NOW_MS).moment == AtTime(NOW_MS + 60_000)
    with pytest.raises(Usage, match="in the future"):
        parse_ref(f"flights@{ahead(61)}", now_ms=NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@now",
        "Flights",
        "flights/",
        "flights/a/b",
        "flights@",
        "flights@Not A Name",
        "flights@-5y",
        "flights@~x",
        "flights@2026-13-01",
        "flights@2026-11-21T25:00",
        "flights@2026-11-21Tnoon",
        "flights@a@b",
    ],
)
def test_an_invalid_ref_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_ref(text, now_ms=NOW_MS)
    assert repr(text) in caught.value.message
    assert "app@~3" in caught.value.hint


def test_the_error_for_a_version_without_a_stage_shows_how_to_name_one() -> None:
    with pytest.raises(Usage, match="a version belongs to one stage") as caught:
        parse_ref("flights@v42", now_ms=0)
    assert "flights/STAGE@v42" in caught.value.hint


@pytest.mark.parametrize(
    ("when", "forms"),
    [
        ("5m", ["flights@-5m for 5m ago"]),
        ("+5m", ["flights@-5m for"]),
        ("1d12h", ["flights@-1d12h for"]),
        ("5 minutes ago", ["flights@-5m for"]),
        ("5-minutes-ago", ["flights@-5m for"]),
        ("-5 min ago", ["flights@-5m for"]),
        ("5", ["flights@~5 for 5 data commits back", "flights/STAGE@v5 for version 5"]),
        ("-5", ["flights@~5 for"]),
        ("~", ["flights@~1 for 1 data commit back"]),
        ("HEAD", ["flights@now for"]),
        ("HEAD~3", ["flights@~3 for"]),
        ("latest^^", ["flights@~2 for"]),
        ("latest", ["flights@now for"]),
        ("V5", ["flights/STAGE@v5 for"]),
        ("version 5", ["flights/STAGE@v5 for"]),
        ("20261121", ["flights@2026-11-21 for"]),
        ("2026/11/21", ["flights@2026-11-21 for"]),
        ("1795245120000", ["flights@2026-11-21T07:12:00.000Z for"]),
        ("beginning", ["slackwater log flights --limit 0"]),
    ],
)
def test_words_that_resemble_a_moment_get_the_intended_form_as_hint(when: str, forms: list[str]) -> None:
    with pytest.raises(Usage, match=r"is not a moment") as caught:
        parse_ref(f"flights@{when}", now_ms=NOW_MS)
    assert repr(f"flights@{when}") in caught.value.message
    assert [form for form in forms if form not in caught.value.hint] == []


def test_days_and_times_of_day_are_in_the_local_time_zone(time_zone: str) -> None:
    hints = {}
    for when in ("yesterday", "today", "02:30"):
        with pytest.raises(Usage) as caught:
            parse_ref(f"flights/routes@{when}", now_ms=NOW_MS)
        hints[when] = caught.value.hint
    # In New York it is twelve past two in the morning then, and the same day.
    assert "flights/routes@2026-11-20 for" in hints["yesterday"]
    assert "flights/routes@-1d for" in hints["yesterday"]
    assert "flights/routes@2026-11-21 for" in hints["today"]
    assert "flights/routes@2026-11-21T02:30 for" in hints["02:30"]


LOOKALIKES = (
    *("5m", "90s", "7d", "1d12h", "5min", "5", "0", "20261121"),
    *("yesterday", "today", "latest", "head", "newest", "oldest"),
)


@pytest.mark.parametrize("what", ["snapshot", "app"])
@pytest.mark.parametrize(
    "name",
    ["now", "v42", "2026-11-21", "2026-11-21t07", "-5m", "~3", "a b", "", *LOOKALIKES, "beginning", "1_week_ago"],
)
def test_new_objects_cannot_have_names_that_read_as_moments(what: str, name: str) -> None:
    with pytest.raises(Usage, match=f"^{what} name {name!r} "):
        check_new_name(what, name)


@pytest.mark.parametrize(
    "name",
    [
        *("last-good", "20261121-071205", "before-upgrade", "clone-5m", "mon", "first", "last"),
        *("start", "v", "5x", "today-2", "release-5", "1a"),
    ],
)
def test_other_names_are_accepted(name: str) -> None:
    assert check_new_name("snapshot", name) == name


@given(st.integers(0, 10**8), st.sampled_from(["ms", "s", "m", "h", "d", "w", " minutes", " weeks ago"]))
def test_the_hint_for_a_span_without_minus_means_that_span_ago(number: int, unit: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_ref(f"flights@{number}{unit}", now_ms=NOW_MS)
    (ref,) = re.findall(r"write (\S+) for ", caught.value.hint)
    expected = parse_ref(f"flights@-{number}{unit.removesuffix(' ago')}", now_ms=NOW_MS).moment
    assert parse_ref(ref, now_ms=NOW_MS).moment == expected


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True))
def test_any_valid_snapshot_name_is_found_by_its_ref(name: str) -> None:
    assert check_name("snapshot", name) == name
    try:
        check_new_name("snapshot", name)
    except Usage:
        return
    assert parse_ref(f"app@{name}", now_ms=NOW_MS).moment == NamedSnapshot(name)


@given(st.text(max_size=40))
def test_any_text_is_a_ref_or_a_usage_error(text: str) -> None:
    try:
        ref = parse_ref(text, now_ms=NOW_MS)
    except Usage:
        return
    assert text.startswith(ref.app)


@pytest.mark.parametrize(
    ("text", "moves"),
    [("a", True), ("a@now", True), ("a@-5m", True), ("a@~2", True), ("a@x-5m", False), ("a@2026-11-21", False)],
)
def test_refs_that_depend_on_the_current_time_are_recognised(text: str, moves: bool) -> None:
    assert parse_ref(text, now_ms=NOW_MS).is_relative is moves
