"""Retries of requests: how long they last, and the messages logged meanwhile."""

import logging
from collections.abc import Callable
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import ObjectNotFound, Unavailable
from slackwater.store.objects.retry import Retry, TransientError


class Clock:
    """Clock that only sleeps advance."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def retry(clock: Clock, patience_s: float = 60, seed: int = 1) -> Retry:
    return Retry("S3 at home", patience_s, clock=lambda: clock.now_s, sleep=clock.sleep, seed=seed)


def away_until(clock: Clock, time_s: float) -> Callable[[], str]:
    def attempt() -> str:
        if clock.now_s < time_s:
            raise TransientError("cannot connect")
        return "answer"

    return attempt


def test_an_immediate_answer_needs_no_sleep() -> None:
    clock = Clock()
    assert retry(clock).call(lambda: "answer") == "answer"
    assert clock.slept_s == []


@given(st.integers(0, 10_000), st.floats(0, 100))
def test_a_request_is_retried_until_the_patience_ends(seed: int, patience_s: float) -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match=r"S3 at home did not answer for \d+ s: cannot connect"):
        retry(clock, patience_s, seed).call(away_until(clock, 1e9))
    assert clock.now_s == pytest.approx(1000 + patience_s, abs=0.001)
    assert all(0 <= slept_s <= min(5, 0.1 * 2**number) for number, slept_s in enumerate(clock.slept_s))


@given(st.integers(0, 10_000), st.floats(0, 60))
def test_an_outage_shorter_than_the_patience_gives_the_answer(seed: int, away_s: float) -> None:
    clock = Clock()
    assert retry(clock, 60, seed).call(away_until(clock, 1000 + away_s)) == "answer"


def test_an_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patient = retry(clock)
    patient.call(away_until(clock, 1030))
    patient.call(lambda: "answer")
    assert [(record.name, record.levelname) for record in caplog.records] == [("slackwater", "WARNING")] * 2
    away, back = caplog.messages
    assert away == "S3 at home does not answer (cannot connect); retrying for up to 60 s"
    assert back.startswith("S3 at home is back after 3")
    patient.call(away_until(clock, clock.now_s + 10))
    assert len(caplog.messages) == 4


def test_a_server_that_does_not_answer_is_logged_after_the_first_request(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def attempt() -> None:
        clock.now_s += 5
        if clock.now_s < 1007:
            raise TransientError("no answer in time")
        assert len(caplog.messages) == 1

    retry(clock).call(attempt)
    assert len(caplog.messages) == 2


def test_a_short_outage_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    retry(clock).call(away_until(clock, 1000.5))
    assert caplog.messages == []


def test_a_refusal_counts_as_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patient = retry(clock)
    outage = away_until(clock, 1020)

    def attempt() -> str:
        outage()
        raise ObjectNotFound("a", "s3://b")

    with pytest.raises(ObjectNotFound):
        patient.call(attempt)
    assert caplog.messages[-1].startswith("S3 at home is back")


def test_an_unanswered_first_request_is_logged_early_with_the_setting_to_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    handler = Handler()
    logging.getLogger("slackwater").addHandler(handler)
    try:
        patient = Retry("S3 at home", 60, setting="AWS_ENDPOINT_URL", silent_s=0.01)
        assert patient.call(lambda: told.wait(30))
        expected = "S3 at home has not answered for 0 s: check that it is running, and its address in AWS_"
        assert caplog.messages[0].startswith(expected)
        assert caplog.messages[1].startswith("S3 at home is back after")
    finally:
        logging.getLogger("slackwater").removeHandler(handler)
