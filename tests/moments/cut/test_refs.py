import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.moments.cut.refs import AtTime, Back, Latest, Named, Ref, Version, When, check_snapshot_name, parse
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
        ("flights@before-upgrade", "", Named("before-upgrade")),
        ("flights@-5m", "", AtTime(NOW_MS - 300_000)),
        ("flights@-90s", "", AtTime(NOW_MS - 90_000)),
        ("flights@-2h", "", AtTime(NOW_MS - 7_200_000)),
        ("flights@-1d", "", AtTime(NOW_MS - 86_400_000)),
        ("flights@~0", "", Back(0)),
        ("flights@~3", "", Back(3)),
        ("flights/routes", "routes", Latest()),
        ("flights/routes@v42", "routes", Version(42)),
        ("flights/routes@~3", "routes", Back(3)),
        ("flights/routes@good", "routes", Named("good")),
        ("flights/routes@2026-11-21T07:12Z", "routes", at(2026, 11, 21, 7, 12)),
        ("flights@2026-11-21T07:12Z", "", at(2026, 11, 21, 7, 12)),
        ("flights@2026-11-21T07:12+01:00", "", at(2026, 11, 21, 6, 12)),
        ("flights@2026-11-21 07:12:00.250Z", "", at(2026, 11, 21, 7, 12, 0, 250_000)),
    ],
)
def test_every_form_of_a_ref_is_understood(text: str, stage: str, moment: When) -> None:
    assert parse(text, now_ms=NOW_MS) == Ref(text, "flights", stage, moment)


def test_a_time_without_an_offset_is_local(time_zone: str) -> None:
    hours = {"UTC": 0, "America/New_York": 5}[time_zone]
    assert parse("flights@2026-11-21T07:12", now_ms=NOW_MS + DAY_MS).moment == at(2026, 11, 21, 7 + hours, 12)
    assert parse("flights@2026-11-21", now_ms=NOW_MS + DAY_MS).moment == at(2026, 11, 21, hours)


def test_a_time_to_the_second_covers_all_of_that_second() -> None:
    moment = parse("flights@2026-11-21T07:12:05Z", now_ms=NOW_MS).moment
    assert moment == at(2026, 11, 21, 7, 12, 5, 999_000)


def test_a_time_still_to_come_is_refused_with_what_time_it_is() -> None:
    with pytest.raises(Usage, match="2027-01-01 is still to come; by this machine's clock it is 2026-11-2") as caught:
        parse("flights/routes@2027-01-01", now_ms=NOW_MS)
    assert "flights/routes@now" in caught.value.hint


def test_another_machines_clock_may_be_a_minute_ahead() -> None:
    def ahead(seconds: int) -> str:
        return datetime.fromtimestamp(NOW_MS / 1000 + seconds, UTC).isoformat(timespec="milliseconds")

    assert parse(f"flights@{ahead(60)}", now_ms=NOW_MS).moment == AtTime(NOW_MS + 60_000)
    with pytest.raises(Usage, match="still to come"):
        parse(f"flights@{ahead(61)}", now_ms=NOW_MS)


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
        "flights@-5",
        "flights@-5y",
        "flights@~",
        "flights@~x",
        "flights@2026-13-01",
        "flights@2026-11-21T25:00",
        "flights@2026-11-21Tnoon",
        "flights@a@b",
    ],
)
def test_what_is_no_ref_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(Usage) as caught:
        parse(text, now_ms=NOW_MS)
    assert repr(text) in caught.value.message
    assert "app@~3" in caught.value.hint


def test_a_version_without_a_stage_says_how_to_name_one() -> None:
    with pytest.raises(Usage, match="a version belongs to one stage") as caught:
        parse("flights@v42", now_ms=0)
    assert "flights/STAGE@v42" in caught.value.hint


@pytest.mark.parametrize("name", ["now", "v42", "2026-11-21", "2026-11-21t07", "-5m", "~3", "a b", ""])
def test_a_snapshot_cannot_have_a_name_that_reads_as_something_else(name: str) -> None:
    with pytest.raises(Usage):
        check_snapshot_name(name)


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True))
def test_a_name_that_a_snapshot_may_have_is_found_again_by_its_ref(name: str) -> None:
    assert check_name("snapshot", name) == name
    try:
        check_snapshot_name(name)
    except Usage:
        return
    assert parse(f"app@{name}", now_ms=NOW_MS).moment == Named(name)


@given(st.text(max_size=40))
def test_any_text_is_a_ref_or_a_usage_error(text: str) -> None:
    try:
        ref = parse(text, now_ms=NOW_MS)
    except Usage:
        return
    assert text.startswith(ref.app)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("a", True),
        ("a@now", True),
        ("a@-5m", True),
        ("a@~2", True),
        ("a@x-5m", False),
        ("a@2026-11-21", False),
    ],
)
def test_a_ref_that_depends_on_when_it_is_read_says_so(text: str, moves: bool) -> None:
    assert parse(text, now_ms=NOW_MS).moves is moves
