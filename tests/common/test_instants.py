import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.common import instants
from slackwater.errors import Usage
from slackwater.snapshot.cut.refs import AtTime, parse_ref


def test_the_present_is_in_milliseconds() -> None:
    before, present, after = time.time(), instants.now_ms(), time.time()
    assert int(before * 1000) <= present <= after * 1000


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("minutes", "2026-11-21T07:12Z"),
        ("seconds", "2026-11-21T07:12:59Z"),
        ("milliseconds", "2026-11-21T07:12:59.999Z"),
    ],
)
def test_a_time_is_truncated_and_never_rounded_up(precision: str, words: str) -> None:
    assert instants.format_iso(1_795_245_179_999, precision) == words


@given(st.integers(0, 4_000_000_000_000))
def test_a_displayed_time_is_a_ref_that_includes_the_time(time_ms: int) -> None:
    moment = parse_ref(f"flights@{instants.format_iso(time_ms)}", now_ms=time_ms).moment
    assert isinstance(moment, AtTime)
    assert time_ms <= moment.time_ms < time_ms + 1000


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_in_milliseconds_is_a_ref_to_exactly_that_time(time_ms: int) -> None:
    exact = instants.format_iso(time_ms, "milliseconds")
    assert parse_ref(f"flights@{exact}", now_ms=time_ms).moment == AtTime(time_ms)


@pytest.mark.parametrize(
    ("elapsed_ms", "words"),
    [(-5, "now"), (999, "now"), (1000, "1 s ago"), (59_999, "59 s ago"), (60_000, "1 min ago"),
     (7_200_000, "2 h ago"), (3 * 86_400_000, "3 d ago")],
)  # fmt: skip
def test_ages(elapsed_ms: int, words: str) -> None:
    assert instants.format_age(1_000_000, 1_000_000 + elapsed_ms) == words


def test_a_time_can_be_shown_with_its_age() -> None:
    time_ms = instants.now_ms() - 90_000
    assert instants.format_with_age(time_ms) == f"{instants.format_iso(time_ms)} (1 min ago)"


@given(st.integers(0, 4_102_444_800_000))
def test_a_formatted_time_parses_to_the_same_time(time_ms: int) -> None:
    assert instants.parse_instant("--at", instants.format_iso(time_ms, "milliseconds")) == time_ms


def test_a_negative_span_counts_back_from_now() -> None:
    assert abs(instants.now_ms() - 300_000 - instants.parse_instant("--at", "-5m")) < 60_000


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-soon", "25:00", "99999-01-01"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="--at"):
        instants.parse_instant("--at", text)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone of this process until the test ends."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


LOCAL = st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1))  # noqa: DTZ001  local, as it is typed
TWICE = [
    ("Europe/Berlin", "2026-10-25T02:30"),
    ("America/New_York", "2026-11-01T01:00"),
    ("Australia/Lord_Howe", "2026-04-05T01:45"),
]
NEVER = [
    ("Europe/Berlin", "2026-03-29T02:30"),
    ("America/New_York", "2026-03-08T02:00"),
    ("Australia/Lord_Howe", "2026-10-04T02:15"),
]


@pytest.mark.parametrize(("zone", "text"), [*TWICE, *NEVER])
def test_a_local_time_that_occurs_twice_or_never_is_refused(local: Callable[[str], None], zone: str, text: str) -> None:
    local(zone)
    expected = {
        datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for fold in (0, 1)
    }
    assert len(expected) == 2
    says = "comes twice in local time" if (zone, text) in TWICE else "does not exist in local time"
    for read in (
        lambda: instants.parse_instant("--to-datetime", text),
        lambda: parse_ref(f"app@{text}", now_ms=1 << 42),
    ):
        with pytest.raises(Usage, match=says) as caught:
            read()
        # The hint suggests one of the two times, and each of them exists.
        words = caught.value.hint.replace(";", "").split()
        offered = {datetime.fromisoformat(word).astimezone(UTC) for word in words if word.startswith(text)}
        assert offered == expected
    with pytest.raises(Usage, match=r"^--to-datetime 20"):
        instants.parse_instant("--to-datetime", text)


@given(LOCAL, st.sampled_from(["Europe/Berlin", "America/New_York"]))
def test_all_other_local_times_follow_the_time_zone(at: datetime, zone: str) -> None:
    first, second = (at.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        try:
            if first.utcoffset() == second.utcoffset():
                assert instants.parse_iso(at.isoformat()) == round(first.timestamp() * 1000)
            else:
                with pytest.raises(Usage, match="in local time"):
                    instants.parse_iso(at.isoformat())
        finally:
            patch.undo()
            time.tzset()


def test_a_date_is_its_first_instant_even_if_midnight_occurs_twice_or_never(local: Callable[[str], None]) -> None:
    local("America/Havana")
    for day in ("2026-11-01", "2026-03-08"):
        start = datetime.fromtimestamp(instants.parse_iso(day) / 1000, ZoneInfo("America/Havana"))
        before = datetime.fromtimestamp(start.timestamp() - 1, ZoneInfo("America/Havana"))
        assert (before.date().isoformat() < day, start.date().isoformat()) == (True, day)
