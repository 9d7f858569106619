"""Rules of retention as written in the file, and the moments that they keep."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.common.durations import DAY_MS, HOUR_MS
from slackwater.errors import Usage
from slackwater.settings import load
from slackwater.snapshot.gc.reachable import Retention


def test_the_file_has_rules_for_all_apps_and_for_one(tmp_path: Path) -> None:
    text = '[retention]\nall = "1d"\nhourly = "7d"\n[retention.flights]\nversions = 10\n'
    (tmp_path / "slackwater.toml").write_text(text)
    settings = load(environ={}, folder=tmp_path)
    assert settings.retention_of("shop") == Retention(all_ms=DAY_MS, hourly_ms=7 * DAY_MS)
    assert settings.retention_of("flights") == Retention(versions=10)
    assert settings.retention_of("flights", all_ms=2 * HOUR_MS) == Retention(all_ms=2 * HOUR_MS, versions=10)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('al = "1d"', "not a rule of retention; the nearest is 'all'"),
        ('all = "1 year"', "retention.all '1 year' is not a span of time"),
        ("all = 5", "retention.all 5 is not a span of time"),
        ("versions = 0", "at least 1"),
        ("[retention.shop]\nversions = true", "retention.shop.versions must be a whole number"),
    ],
)
def test_the_error_for_an_invalid_rule_quotes_the_rule(tmp_path: Path, rules: str, message: str) -> None:
    (tmp_path / "slackwater.toml").write_text(f"[retention]\n{rules}\n")
    with pytest.raises(Usage) as caught:
        load(environ={}, folder=tmp_path)
    assert message in caught.value.message


@given(
    now_ms=st.integers(10**12, 2 * 10**12),
    hourly=st.integers(0, 200),
    daily=st.integers(0, 400),
    ago_ms=st.integers(0, 400 * DAY_MS),
)
def test_for_every_time_in_a_window_a_moment_at_most_a_period_earlier_is_kept(
    now_ms: int, hourly: int, daily: int, ago_ms: int
) -> None:
    rules = Retention(hourly_ms=hourly * HOUR_MS, daily_ms=daily * DAY_MS)
    ends = [time_ms for time_ms, _ in rules.moments(now_ms, now_ms)]
    assert ends == sorted(set(ends))
    asked = now_ms - ago_ms
    for window_ms, period_ms in ((hourly * HOUR_MS, HOUR_MS), (daily * DAY_MS, DAY_MS)):
        if ago_ms < window_ms:
            assert any(asked - period_ms <= end <= asked for end in ends)
    assert len(ends) <= hourly + daily + 4


def test_a_window_longer_than_unix_time_starts_in_1970() -> None:
    now_ms = 48 * HOUR_MS
    ends = [time_ms for time_ms, _ in Retention(hourly_ms=10**9 * DAY_MS).moments(now_ms, now_ms)]
    assert ends == [hour * HOUR_MS - 1 for hour in range(49)]
