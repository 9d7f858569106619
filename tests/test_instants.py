import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater import instants
from slackwater.errors import Usage
from slackwater.moments.cut.refs import AtTime, parse


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
def test_a_time_is_cut_off_and_never_rounded_up(precision: str, words: str) -> None:
    assert instants.iso(1_795_245_179_999, precision) == words


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_as_shown_is_a_ref_that_includes_it(time_ms: int) -> None:
    moment = parse(f"flights@{instants.iso(time_ms)}", now_ms=time_ms).moment
    assert isinstance(moment, AtTime)
    assert time_ms <= moment.time_ms < time_ms + 1000


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_to_the_millisecond_is_a_ref_to_it(time_ms: int) -> None:
    exact = instants.iso(time_ms, "milliseconds")
    assert parse(f"flights@{exact}", now_ms=time_ms).moment == AtTime(time_ms)


@pytest.mark.parametrize(
    ("elapsed_ms", "words"),
    [(-5, "now"), (999, "now"), (1000, "1 s ago"), (59_999, "59 s ago"), (60_000, "1 min ago"),
     (7_200_000, "2 h ago"), (3 * 86_400_000, "3 d ago")],
)  # fmt: skip
def test_ages(elapsed_ms: int, words: str) -> None:
    assert instants.age(1_000_000, 1_000_000 + elapsed_ms) == words


def test_a_time_with_its_age_is_both() -> None:
    time_ms = instants.now_ms() - 90_000
    assert instants.when(time_ms) == f"{instants.iso(time_ms)} (1 min ago)"


@given(st.integers(0, 4_102_444_800_000))
def test_a_time_is_read_as_it_is_written(time_ms: int) -> None:
    assert instants.parse("--at", instants.iso(time_ms, "milliseconds")) == time_ms


def test_a_span_back_counts_from_now() -> None:
    assert abs(instants.now_ms() - 300_000 - instants.parse("--at", "-5m")) < 60_000


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-soon", "25:00", "99999-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="--at"):
        instants.parse("--at", text)
