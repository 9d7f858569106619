"""Stopped clocks also apply to names imported from time and datetime, and are restored after errors."""

import datetime
import pickle
import time
from datetime import date
from datetime import datetime as when

import pytest
from slackwater.pipeline.spark.clock import stopped_clocks

AT_MS = 1_000_000_000_500
AT = datetime.datetime(2001, 9, 9, 1, 46, 40, 500_000, datetime.UTC)


def test_every_clock_of_python_returns_the_stopped_time() -> None:
    with stopped_clocks(AT_MS):
        assert time.time() == AT_MS / 1000
        assert time.time_ns() == AT_MS * 1_000_000
        assert time.gmtime()[:6] == AT.timetuple()[:6]
        assert time.strftime("%Y") == time.ctime()[-4:] == time.asctime()[-4:] == "2001"
        assert datetime.datetime.now(datetime.UTC) == when.now(datetime.UTC) == AT
        assert datetime.datetime.utcnow() == AT.replace(tzinfo=None)  # noqa: DTZ003
        assert datetime.datetime.today() == datetime.datetime.now()  # noqa: DTZ002, DTZ005
        assert datetime.date.today() == date.today() == when.fromtimestamp(AT_MS / 1000).date()  # noqa: DTZ006, DTZ011


def test_explicit_times_are_not_changed() -> None:
    with stopped_clocks(AT_MS):
        assert time.gmtime(0)[:3] == (1970, 1, 1)
        assert when(2020, 1, 2) == AT.replace(2020, 1, 2, 0, 0, 0, 0, None)  # noqa: DTZ001
        assert when.fromisoformat("2020-01-02") == when(2020, 1, 2)  # noqa: DTZ001
        assert when.strptime("2020", "%Y").year == 2020  # noqa: DTZ007
        assert date.fromordinal(1) == date.min


def test_values_keep_their_classes() -> None:
    before = when(2020, 1, 2, tzinfo=datetime.UTC)
    with stopped_clocks(AT_MS):
        made = when(2020, 1, 2, tzinfo=datetime.UTC)
        assert isinstance(before, when)
        assert isinstance(before, date)
        assert issubclass(type(before), when)
    assert type(made) is type(before) is when
    assert pickle.loads(pickle.dumps(made)) == before  # noqa: S301


def test_clocks_are_restored_whatever_happens() -> None:
    classes, real = (datetime.datetime, datetime.date, when, date), time.time
    with stopped_clocks(AT_MS):
        with stopped_clocks(0):
            assert time.time() == 0
        assert time.time() == AT_MS / 1000
    with pytest.raises(ZeroDivisionError), stopped_clocks(AT_MS):
        raise ZeroDivisionError
    assert (datetime.datetime, datetime.date, when, date) == classes
    assert time.time is real
    assert time.time() > AT_MS / 1000
